"""Draft lengths by expected gain: the plan is the best one, it adapts, and outputs stay stock's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from draftsmith.engine.budget import Acceptance, DraftBudget, StepTimes
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.types import Budget, Completion, Request, Sampling, SpecConfig
from tests.support.tinymodels import tiny_decoder


def budget_with(
    times: Callable[[int], float], accepted: list[list[tuple[int, int]]], *, chain: bool = True
) -> DraftBudget:
    """A budget that has seen ``times`` for up to 40 rows and (drafted, accepted) of each slot."""
    budget = DraftBudget(chain=chain)
    for rows in range(1, 41):
        budget.learn_step(rows, times(rows))
    for slot, steps in enumerate(accepted):
        budget.admit(slot)
        for drafted, kept in steps:
            budget.learn_outcome(slot, drafted, kept)
    return budget


def test_times_between_points_are_on_a_line_and_never_fall() -> None:
    times = StepTimes()
    assert times.of(5) == 0.0
    times.learn(4, 8.0)
    assert times.of(1) == times.of(100) == 8.0
    times.learn(8, 16.0)
    assert [times.of(rows) for rows in (1, 4, 6, 8, 10)] == [8.0, 8.0, 12.0, 16.0, 20.0]
    times.learn(10, 10.0)  # noise: more rows cannot be cheaper
    assert times.of(9) == times.of(10) == times.of(12) == 16.0


def test_a_stall_moves_a_time_little_and_a_change_is_followed() -> None:
    times = StepTimes()
    times.learn(1, 1.0)
    times.learn(1, 1000.0)
    assert times.of(1) <= 1.11
    for _ in range(50):
        times.learn(1, 0.5)
    assert times.of(1) == pytest.approx(0.5, rel=0.01)


def test_acceptance_follows_what_is_seen_and_forgets() -> None:
    seen = Acceptance()
    assert seen.along(3) == pytest.approx([0.6, 0.36, 0.216])
    for _ in range(60):
        seen.learn(4, 2)
    first, second, third, _ = seen.along(4)
    assert first > 0.95 and second > 0.9 and third < 0.1
    for _ in range(60):
        seen.learn(4, 0)
    assert seen.along(1)[0] < 0.15
    for _ in range(200):
        seen.learn(0, 0)  # not tried any more: back to the prior, so it is tried again
    assert seen.along(1)[0] == pytest.approx(0.6, abs=0.01)


@pytest.mark.parametrize("seed", range(12))
def test_the_plan_is_the_best_of_all_plans(seed: int) -> None:
    """Against every combination of lengths, with jagged times."""
    rng = random.Random(seed)
    jumps = [rng.choice((0.0, 0.1, 0.4)) for _ in range(41)]
    accepted = [
        [(4, rng.randint(0, 4)) for _ in range(rng.randint(0, 20))]
        for _ in range(rng.choice((1, 3)))
    ]

    def times(rows: int) -> float:
        return 1.0 + sum(jumps[:rows])

    budget = budget_with(times, accepted)
    slots = list(range(len(accepted)))
    limits = [rng.randint(0, 4) for _ in slots]
    chances = []
    for steps in accepted:
        seen = Acceptance()
        for drafted, kept in steps:
            seen.learn(drafted, kept)
        chances.append(seen.along(4))

    def rate(lengths: tuple[int, ...]) -> float:
        tokens = len(slots) + sum(sum(chances[r][:n]) for r, n in enumerate(lengths))
        return tokens / times(len(slots) + sum(lengths))

    best = max(rate(lengths) for lengths in product(*(range(limit + 1) for limit in limits)))
    plan = budget.plan(slots, limits)
    assert all(0 <= planned <= limit for planned, limit in zip(plan, limits, strict=True))
    assert rate(tuple(plan)) == pytest.approx(best)


def test_dear_rows_or_bad_drafts_switch_speculation_off_for_that_request_only() -> None:
    good, bad = [(4, 4)] * 40, [(4, 0)] * 40
    cheap = budget_with(lambda rows: 1.0 + 0.1 * rows, [good, bad])
    assert cheap.plan([0, 1], [4, 4]) == [4, 0]
    dear = budget_with(lambda rows: float(rows), [good, bad])
    assert dear.plan([0, 1], [4, 4])[1] == 0


def test_the_time_of_drafting_counts() -> None:
    steps = [(4, 3)] * 40
    free = budget_with(lambda rows: 1.0 + 0.05 * rows, [steps])
    dear = budget_with(lambda rows: 1.0 + 0.05 * rows, [steps])
    for _ in range(50):
        dear.learn_draft(1, 2.0)
    assert free.plan([0], [4])[0] >= 3 and dear.plan([0], [4]) == [0]


def test_a_tree_is_drafted_whole_or_not_at_all() -> None:
    good = budget_with(lambda rows: 1.0 + 0.01 * rows, [[(16, 3)] * 30], chain=False)
    assert good.plan([0], [24]) == [24]
    bad = budget_with(lambda rows: 1.0 + 0.1 * rows, [[(16, 0)] * 30], chain=False)
    assert bad.plan([0], [24]) == [0]


def test_nothing_measured_yet_means_trying() -> None:
    budget = DraftBudget(chain=True)
    budget.admit(0)
    assert budget.plan([0], [4]) == [4]
    assert budget.plan([0], [0]) == [0]


class RowClock:
    """Every look at the clock takes as long as the last forward had rows, ``power``-fold."""

    def __init__(self, model: Decoder, power: float) -> None:
        self._time = 0.0
        forward = model.forward

        def timed(rows, cache, **more):  # type: ignore[no-untyped-def]
            self._time += 1.0 + power * sum(rows.widths)
            return forward(rows, cache, **more)

        model.forward = timed  # type: ignore[method-assign]

    def now(self) -> float:
        return self._time


CONFIGS = [
    SpecConfig(drafter="ngram", block_size=8, match_min=1),
    SpecConfig(drafter="suffix", block_size=8, match_max=8),
    SpecConfig(drafter="suffix", block_size=6, match_max=8, tree="dynamic", tree_budget=12),
    SpecConfig(drafter="recycle", block_size=4, tree="static", tree_budget=8),
    SpecConfig(drafter="early_exit", exit_layer=1, block_size=4),
    SpecConfig(drafter="early_exit", exit_layer=1, block_size=4, verifier="block"),
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("power", [0.01, 3.0], ids=["cheap rows", "dear rows"])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.drafter}-{config.tree}")
def test_outputs_are_stocks_whatever_is_planned(
    config: SpecConfig, power: float, concurrency: int, temperature: float
) -> None:
    if temperature > 0 and config.verifier != "coupled":
        pytest.skip("exact in distribution, not token by token")
    model = tiny_decoder(num_layers=2)
    requests = [
        Request(
            request_id=str(i),
            prompt_ids=tuple([3 + i, 4, 5, 6, 3 + i, 4, 5, 6, 3 + i, 4]),
            sampling=Sampling(max_tokens=24, temperature=temperature, seed=i, ignore_eos=True),
        )
        for i in range(4)
    ]
    engine = NativeEngine(model, clock=RowClock(model, power))

    def run(draft_budget: Budget) -> list[Completion]:
        chosen = replace(config, draft_budget=draft_budget)
        return list(engine.run(requests, chosen, concurrency=concurrency).completions)

    stock = engine.run(requests, SpecConfig()).completions
    gain, fixed = run("gain"), run("fixed")
    assert [c.token_ids for c in gain] == [c.token_ids for c in stock]
    drafted = [sum(step.drafted for c in runs for step in c.steps) for runs in (gain, fixed)]
    if power > 1:
        assert drafted[0] < drafted[1]
    assert drafted[1] > 0
