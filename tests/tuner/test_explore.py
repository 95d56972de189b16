"""How often units are timed, and whose turn it is: who has nothing to say gives it to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner import controller
from draftsmith.tuner.agents.agent import Lesson, Proposal, View
from tests.support.fakeworld import World
from tests.support.tuning import Bench


class Lister:
    """Proposes what it was given, in order, one at a time."""

    def __init__(self, name: str, *configs: SpecConfig) -> None:
        self._name = name
        self._left = list(configs)

    def propose(self, view: View, count: int) -> list[Proposal]:
        del view, count
        return [
            Proposal(config=config, proposer=self._name, why="listed")
            for config in (self._left.pop(0) for _ in self._left[:1])
        ]

    def learn(self, lesson: Lesson) -> None:
        del lesson


@pytest.mark.parametrize(
    ("stock_s", "concurrency", "repeats"), [(1.0, 1, 1), (0.2, 1, 3), (0.01, 1, 3), (0.2, 4, 1)]
)
def test_short_units_are_timed_several_times(
    tmp_path: Path, stock_s: float, concurrency: int, repeats: int
) -> None:
    """A unit at a concurrency is a group, as long as its requests together."""
    bench = Bench(tmp_path)
    world = World(speed=lambda config: 1.2, stock_s=stock_s)
    bench.run(world, max_trials=2, concurrency=concurrency, num_tuning=24, num_heldout=16)
    explored = [job for job in world.jobs if len(job.configs) > 1 and not job.force_all]
    assert explored and {job.repeats for job in explored} == {repeats}
    bench.close()


def test_silent_agents_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def agents(*_: Any) -> list[Lister]:
        first = Lister("first", *(SpecConfig(drafter="ngram", block_size=k) for k in (2, 3)))
        return [Lister("silent"), first, Lister("last", SpecConfig(drafter="ngram", block_size=5))]

    monkeypatch.setattr(controller, "_agents", agents)
    bench = Bench(tmp_path)
    world = World(speed=lambda config: 1.2)
    result = bench.run(world)
    measured = [t for t in bench.trials(world, result.run, "explore") if t.rung == 0]
    assert [t.proposer for t in measured] == ["first", "last", "first"]
    bench.close()
