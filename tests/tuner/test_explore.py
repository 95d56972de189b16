"""Agents take turns, and one that has nothing to say gives its turn to the next."""

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
