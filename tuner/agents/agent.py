"""The agent protocol: who proposes configurations to measure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from draftsmith.engine.types import SpecConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A configuration worth measuring, normalised, with who says so and why in one sentence."""

    config: SpecConfig
    proposer: str
    why: str
    optuna_number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What an agent may see of the run: the configurations that are queued, running or measured,
    and the seconds left for exploring.
    """

    known: Collection[SpecConfig]
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A configuration's first measurement, on the prompts that every configuration starts with.
    ``ratio`` is the speed-up over stock, None when it failed or is infeasible (``reason`` says
    why).
    """

    config: SpecConfig
    optuna_number: int | None
    ratio: float | None
    reason: str = ""


class Agent(Protocol):
    """Explores one direction, or several. Both methods run on the driver's thread."""

    def propose(self, view: View, count: int) -> list[Proposal]:
        """Up to ``count`` configurations that ``view`` does not know; none when nothing is left to
        try. Called when a worker is idle and the budget allows another trial.
        """
        ...

    def learn(self, lesson: Lesson) -> None:
        """Called once for each finished first measurement, own or other; again for all after a
        resume, so a lesson learned before must change nothing.
        """
        ...
