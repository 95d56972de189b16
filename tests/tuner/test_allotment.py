"""How a budget is shared out: pure arithmetic."""

from __future__ import annotations

import pytest

from draftsmith.tuner.allotment import (
    Allotment,
    Supply,
    allot,
    baseline_s,
    confirm_s,
    cut,
    trial_s,
)
from draftsmith.tuner.errors import BudgetError


def supply(left_s: float, **more: int) -> Supply:
    values = {"num_tuning": 48, "num_heldout": 24, **more}
    return Supply(left_s=left_s, **values)  # type: ignore[arg-type]


def test_a_large_budget_uses_every_prompt() -> None:
    assert allot(1.0, supply(10_000.0)) == Allotment(num_tuning=48, num_heldout=24)


@pytest.mark.parametrize("concurrency", [1, 4, 8, 16])
def test_a_large_budget_uses_every_prompt_at_any_concurrency(concurrency: int) -> None:
    used = allot(1.0, supply(100_000.0, concurrency=concurrency))
    assert used == Allotment(num_tuning=48, num_heldout=24)


def test_more_budget_never_means_fewer_prompts() -> None:
    sizes = [allot(2.0, supply(float(left))).num_heldout for left in range(200, 2000, 50)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_tuning_prompts_leave_time_for_several_configurations() -> None:
    """Stock at 5 s a prompt and ten minutes: one climb over all tuning prompts takes a quarter of
    the search, not most of it.
    """
    share = supply(590.0)
    used = allot(5.0, share)
    search_s = (
        590.0 - baseline_s(5.0, used, share) - confirm_s(5.0, used.num_heldout, share, passes=2)
    )
    climb_s = trial_s(5.0, used.num_tuning, 1) - trial_s(5.0, 4, 1)
    assert used.num_heldout >= 8 and climb_s <= 0.35 * search_s


def test_the_smallest_run_is_two_timed_units_of_each_part() -> None:
    with pytest.raises(BudgetError, match="needs about"):
        allot(1.0, supply(20.0))
    small = allot(1.0, supply(200.0, concurrency=4))
    assert small.num_tuning >= 16 and small.num_heldout >= 16


@pytest.mark.parametrize(
    ("workers", "concurrency", "in_a_row"),
    [(1, 1, 24), (2, 1, 12), (5, 1, 5), (4, 8, 16), (2, 4, 16), (100, 1, 1)],
)
def test_what_the_busiest_worker_takes(workers: int, concurrency: int, in_a_row: int) -> None:
    """24 prompts at concurrency 8 are chunks of 16 and 8: two workers, sixteen in a row."""
    share = supply(1.0, num_workers=workers, concurrency=concurrency)
    used = Allotment(num_tuning=0, num_heldout=24)
    assert baseline_s(1.0, used, share) == pytest.approx(in_a_row * 1.25)


def test_a_cut_keeps_the_minimum_and_no_more_than_there_is() -> None:
    whole = Allotment(num_tuning=48, num_heldout=24)
    assert cut(whole, 0.5, 4) == Allotment(num_tuning=24, num_heldout=12)
    assert cut(whole, 0.0, 4) == Allotment(num_tuning=4, num_heldout=4)
    assert cut(whole, 2.0, 4) == whole
    assert cut(Allotment(num_tuning=3, num_heldout=2), 0.1, 4).num_heldout == 2
