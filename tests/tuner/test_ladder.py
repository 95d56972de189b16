"""Who climbs, who stays, who leads."""

from __future__ import annotations

import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.ladder import (
    Climber,
    contender,
    fastest_below_the_top,
    next_to_climb,
    ranking,
    rung_slices,
)
from draftsmith.tuner.objective import Score
from draftsmith.tuner.result import Interval


def climber(
    block: int,
    ratio: float,
    *,
    rung: int = 0,
    spread: float = 0.1,
    feasible: bool = True,
    tree: str = "chain",
    **more: object,
) -> Climber:
    config = SpecConfig(drafter="early_exit", exit_layer=2, block_size=block, tree=tree)  # type: ignore[arg-type]
    interval = Interval(ratio=ratio, low=ratio - spread, high=ratio + spread, num_prompts=4)
    return Climber(
        config=config,
        rung=rung,
        score=Score(feasible=feasible, reason="" if feasible else "lossy", interval=interval),
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("prompts", "concurrency", "sizes"),
    [
        (40, 1, [4, 6, 30]),
        (9, 1, [4, 5]),
        (3, 1, [3]),
        (40, 4, [16, 16, 8]),  # units of eight
        (35, 4, [16, 19]),  # three prompts would run under another load
        (6, 4, [6]),
        (100, 8, [32, 32, 36]),
    ],
)
def test_rungs_add_prompts_in_whole_units(prompts: int, concurrency: int, sizes: list[int]) -> None:
    slices = rung_slices(prompts, concurrency)
    assert [len(part) for part in slices] == sizes
    assert [i for part in slices for i in part] == list(range(prompts))


def test_one_in_three_climbs_by_its_upper_end() -> None:
    group = [climber(1, 1.1), climber(2, 1.2, spread=0.05), climber(3, 1.15, spread=0.3)]
    assert next_to_climb(group[:2], 3) is None
    assert next_to_climb(group, 3) is group[2]
    group[2].busy = True
    assert next_to_climb(group, 3) is None


def test_lossy_losing_failed_and_stopped_ones_stay() -> None:
    group = [
        climber(1, 5.0, feasible=False),
        climber(2, 0.7),
        climber(3, 2.0, failed="oom"),
        climber(4, 2.0, stopped=True),
        climber(5, 1.2),
        climber(6, 1.1),
    ]
    assert next_to_climb(group, 3) is group[4]


def test_the_incumbent_climbs_whatever_its_score() -> None:
    pinned = climber(1, 0.8, pinned=True)
    assert next_to_climb([pinned], 3) is pinned


def test_the_fastest_goes_to_the_top_at_the_end() -> None:
    group = [climber(1, 1.3), climber(2, 1.2, rung=1)]
    assert fastest_below_the_top(group, 3) is group[0]
    assert fastest_below_the_top([climber(1, 1.1), climber(2, 1.4, rung=2)], 3) is None


def test_time_left_over_goes_to_those_that_may_still_be_faster() -> None:
    """A bad first measurement does not keep the best one below the top for good."""
    top = climber(1, 1.5, rung=2)
    unclear, slower = climber(2, 1.45, spread=0.2), climber(3, 1.2, spread=0.2)
    assert contender([top, unclear, slower], 3) is unclear
    assert contender([top, slower], 3) is None
    assert contender([top, climber(4, 1.4, spread=0.3, busy=True)], 3) is None


def test_within_one_per_cent_the_simpler_leads() -> None:
    dynamic = climber(4, 1.505, rung=2, tree="dynamic")
    chain = climber(3, 1.5, rung=2)
    slower = climber(2, 1.4, rung=2)
    assert ranking([dynamic, slower, chain]) == [chain, dynamic, slower]


def test_within_one_per_cent_of_stock_off_is_simpler() -> None:
    barely = climber(1, 1.009, rung=2, spread=0.001)
    assert ranking([barely]) == []
    assert ranking([barely, climber(2, 1.012, rung=0)])[0].config.block_size == 2


def test_more_prompts_rank_before_fewer_and_losers_not_at_all() -> None:
    top = climber(1, 1.2, rung=2)
    lucky = climber(2, 1.9, rung=0, spread=0.9)  # four prompts, and it could be slower than top
    assert ranking([lucky, top, climber(3, 0.95, rung=2), climber(4, 3.0, feasible=False)]) == [
        top,
        lucky,
    ]


def test_one_that_was_never_promoted_leads_when_even_its_lower_end_is_above_the_leaders() -> None:
    """Speed-ups seen when a search ran out of time: 1.06 (0.84 to 1.34) climbed, 1.27 (1.06 to
    1.41) waited.
    """
    climbed = climber(1, 1.06, rung=1, spread=0.22)
    waited = climber(2, 1.27, rung=0, spread=0.2)
    assert ranking([climbed, waited]) == [waited, climbed]
    unclear = climber(3, 1.3, rung=0, spread=0.5)
    assert ranking([climbed, unclear]) == [climbed, unclear]
