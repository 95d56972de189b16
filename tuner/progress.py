"""Progress reports of a tuning run, for whoever draws the bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from draftsmith.engine.types import SpecConfig

Phase = Literal["baseline", "explore", "confirm", "export"]
PHASES: tuple[Phase, ...] = ("baseline", "explore", "confirm", "export")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialNews:
    """One job that ended. ``ratio`` is the speed-up over stock with its interval, None when it
    failed.
    """

    number: int
    stage: str
    rung: int
    config: SpecConfig
    state: str  # done | failed | pruned
    feasible: bool
    reason: str
    ratio: float | None
    low: float | None
    high: float | None


class Progress(Protocol):
    """Called on the driver's thread; must return quickly."""

    def on_phase(self, phase: Phase, note: str, seconds_left: float) -> None:
        """A phase began, or its note changed. ``seconds_left`` of the whole budget."""
        ...

    def on_trial(self, news: TrialNews, seconds_left: float) -> None:
        """A job of exploring or confirming ended."""
        ...


class Silent:
    """No progress is shown."""

    def on_phase(self, phase: Phase, note: str, seconds_left: float) -> None:
        del phase, note, seconds_left

    def on_trial(self, news: TrialNews, seconds_left: float) -> None:
        del news, seconds_left
