"""Single changes of the best configurations measured so far, the most promising first.

TPE needs many trials before it models anything; most budgets hold few. This agent changes one
parameter of one of the fastest feasible configurations by a few steps of its grid, and proposes the
change of which a Gaussian process over all measurements expects most: in a landscape like the one
of tests/tuner/test_agents.py it finds exit layer, block size and draft vocabulary in thirty trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

from draftsmith.engine.types import Budget, SpecConfig
from draftsmith.tuner.agents.agent import Lesson, Proposal, View
from draftsmith.tuner.agents.surrogate import upper_bounds
from draftsmith.tuner.knobs import KNOBS, SpaceFacts, high_limit, is_read
from draftsmith.tuner.parameters import draft_vocab_grid, expressible
from draftsmith.tuner.space import config_text, normalise

LEADERS = 3  # fastest configurations whose neighbours are tried
REACH = 0.9  # a leader is at least this share of the fastest
_STEPS = (1, -1, 2, -2, 3, -3, 4, -4)  # of integer knobs
_THRESHOLDS = (0.0, 0.2, 0.4, 0.6)
_INTEGERS = (
    "block_size",
    "exit_layer",
    "tree_budget",
    "recycle_k",
    "fallback_size",
    "match_min",
    "match_max",
)


class NeighbourAgent:
    """Silent until ``patience`` configurations were measured: the starting points go first."""

    def __init__(self, facts: SpaceFacts, *, patience: int) -> None:
        self._facts = facts
        self._patience = patience
        self._ratios: dict[SpecConfig, float] = {}
        self._num_lessons = 0

    def propose(self, view: View, count: int) -> list[Proposal]:
        if self._num_lessons < self._patience:
            return []
        changes: dict[SpecConfig, str] = {}
        for leader in self._leaders():
            for config, change in self._around(leader):
                why = f"{change}, from {config_text(leader)} at {self._ratios[leader]:.2f}x"
                changes.setdefault(config, why)
        new = [config for config in changes if config not in view.known]
        bounds = dict(zip(new, upper_bounds(new, self._searched, self._facts), strict=True))
        return [
            Proposal(config=config, proposer="neighbours", why=changes[config])
            for config in sorted(new, key=lambda config: -bounds[config])[:count]
        ]

    def learn(self, lesson: Lesson) -> None:
        if lesson.config in self._ratios:
            return
        self._num_lessons += 1
        self._ratios[lesson.config] = lesson.ratio or 0.0

    @property
    def _searched(self) -> dict[SpecConfig, float]:
        """Measured configurations within the searched space: an incumbent may be outside."""
        return {c: r for c, r in self._ratios.items() if expressible(c, self._facts)}

    def _leaders(self) -> list[SpecConfig]:
        best = max(self._ratios.values(), default=0.0)
        near = [config for config, ratio in self._ratios.items() if 0 < best * REACH <= ratio]
        return sorted(near, key=lambda config: -self._ratios[config])[:LEADERS]

    def _around(self, leader: SpecConfig) -> Iterator[tuple[SpecConfig, str]]:
        """Neighbours within the searched ranges, nearest first."""
        for changed in self._changes(leader):
            config = normalise(changed, self._facts)
            if config != leader and expressible(config, self._facts):
                yield config, _difference(leader, config)

    def _changes(self, leader: SpecConfig) -> Iterator[SpecConfig]:
        for step in _STEPS:
            for name in _INTEGERS:
                if not is_read(KNOBS[name], leader):
                    continue
                value = getattr(leader, name)
                moved = value + step * (1 if value < 8 else 2)
                if KNOBS[name].low <= moved <= high_limit(KNOBS[name], leader.drafter, self._facts):
                    yield replace(leader, **{name: moved})
            if is_read(KNOBS["draft_vocab"], leader):
                yield from _along(leader, draft_vocab_grid(self._facts), step)
        for budget in get_args(Budget):
            yield replace(leader, draft_budget=budget)
        if is_read(KNOBS["stop_threshold"], leader):
            for threshold in _THRESHOLDS:
                yield replace(leader, stop_threshold=threshold)


def _along(leader: SpecConfig, grid: Sequence[int | None], step: int) -> Iterator[SpecConfig]:
    if leader.draft_vocab in grid:
        place = grid.index(leader.draft_vocab) + step
        if 0 <= place < len(grid):
            yield replace(leader, draft_vocab=grid[place])


def _difference(before: SpecConfig, after: SpecConfig) -> str:
    changes = [
        f"{name} {getattr(before, name)} to {getattr(after, name)}"
        for name in KNOBS
        if getattr(before, name) != getattr(after, name)
    ]
    return ", ".join(changes)
