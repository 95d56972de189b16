"""The clock and the statistics over paired timings."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.timing import (
    Clock,
    MonotonicClock,
    losing,
    mean_of_ratios,
    paired_ratio,
    ratio_of_sums,
    student_quantile,
)
from tests.support.clock import FakeClock


def measured(clock: Clock, work: list[float], move: FakeClock) -> list[float]:
    seconds = []
    for cost in work:
        begin = clock.now()
        move.advance(cost)
        seconds.append(clock.now() - begin)
    return seconds


def test_b18_the_headline_is_the_ratio_of_sums_and_the_other_has_its_own_name() -> None:
    clock = FakeClock(start_s=1000.0)
    stock = measured(clock, [10.0, 1.0], clock)
    config = measured(clock, [5.0, 1.0], clock)
    assert mean_of_ratios(stock, config) == pytest.approx(1.50)
    assert ratio_of_sums(stock, config) == pytest.approx(11 / 6)
    assert paired_ratio(stock, config, ["a", "a"]).ratio == pytest.approx(11 / 6)


def test_b18_a_wall_clock_that_steps_back_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = iter([1000.0, 400.0, 300.0, 200.0])
    monkeypatch.setattr(time, "time", lambda: next(wall))
    clock = MonotonicClock()
    readings = [clock.now() for _ in range(50)]
    assert readings == sorted(readings)
    assert next(wall) == 1000.0, "the clock read the wall clock"


def test_geometric_mean_counts_every_category_once() -> None:
    result = paired_ratio([4.0, 4.0, 4.0, 9.0], [1.0, 1.0, 1.0, 9.0], ["a", "a", "a", "b"])
    assert result.by_category == {"a": 4.0, "b": 1.0}
    assert result.geometric_mean_by_category == pytest.approx(2.0)
    assert result.ratio == pytest.approx(21 / 12)
    assert result.num_units == 4


def test_interval_is_tight_where_every_unit_agrees_and_pairing_is_kept() -> None:
    stock = [1.0, 2.0, 40.0, 8.0, 16.0, 4.0]
    result = paired_ratio(stock, [s / 2 for s in stock], ["a", "b", "a", "b", "a", "b"])
    assert (result.low, result.ratio, result.high) == pytest.approx((2.0, 2.0, 2.0))


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for trial in range(200):
        config = generator.lognormal(0.0, 0.6, size=8)
        stock = config * generator.normal(1.5, 0.3, size=8).clip(0.3)
        result = paired_ratio(
            stock.tolist(), config.tolist(), ["a", "b"] * 4, num_samples=500, seed=trial
        )
        assert result.low <= result.ratio <= result.high
        covered += result.low <= 1.5 <= result.high
    assert 172 <= covered <= 199


def test_interval_is_stratified_by_category() -> None:
    # Between the categories the ratio differs widely, within one not at all: only a bootstrap that
    # keeps each category's share gives an interval without width.
    result = paired_ratio([4.0] * 5 + [1.0] * 5, [1.0] * 10, ["a"] * 5 + ["b"] * 5)
    assert result.low == result.high == result.ratio == 2.5


@pytest.mark.parametrize("categories", [["a", "b", "c", "d"], ["a", "a", "a", "b"]])
def test_categories_of_one_unit_still_contribute_spread(categories: list[str]) -> None:
    result = paired_ratio([1.0, 1.0, 1.0, 4.0], [1.0, 1.0, 1.0, 1.0], categories)
    assert result.low < result.ratio < result.high


def test_same_seed_same_interval() -> None:
    generator = np.random.default_rng(0)
    stock, config = generator.uniform(1, 2, 20).tolist(), generator.uniform(1, 2, 20).tolist()
    first = paired_ratio(stock, config, ["a"] * 20, seed=5)
    assert first == paired_ratio(stock, config, ["a"] * 20, seed=5)
    assert first.high != paired_ratio(stock, config, ["a"] * 20, seed=6).high


def test_higher_confidence_is_wider() -> None:
    stock, config = [3.0, 1.0, 2.0, 5.0, 1.0, 2.5], [1.0, 1.0, 1.5, 2.0, 1.1, 1.9]
    narrow = paired_ratio(stock, config, ["a"] * 6, confidence=0.5)
    wide = paired_ratio(stock, config, ["a"] * 6, confidence=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_one_unit_says_nothing_about_spread() -> None:
    result = paired_ratio([3.0], [1.0], ["a"])
    assert (result.low, result.ratio, result.high) == (0.0, 3.0, math.inf)
    assert not losing([1.0], [3.0])


@pytest.mark.parametrize(
    ("stock", "config", "message"),
    [
        ([], [], "no timed units"),
        ([1.0, 2.0], [1.0], "pair up"),
        ([1.0, 0.0], [1.0, 1.0], "unit 1 of the stock took 0.0 s"),
        ([1.0, 1.0], [1.0, math.nan], "unit 1 of the configuration took nan s"),
        ([1.0, 1.0], [math.inf, 1.0], "unit 0 of the configuration took inf s"),
        ([-1.0, 1.0], [1.0, 1.0], "unit 0 of the stock took -1.0 s"),
    ],
)
def test_times_that_cannot_be_compared_are_refused(
    stock: list[float], config: list[float], message: str
) -> None:
    for compare in (
        ratio_of_sums,
        mean_of_ratios,
        losing,
        lambda s, c: paired_ratio(s, c, ["a"] * len(s)),
    ):
        with pytest.raises(EngineInputError, match=message):
            compare(stock, config)


def test_categories_and_parameters_are_checked() -> None:
    with pytest.raises(EngineInputError, match="1 categories for 2 timed units"):
        paired_ratio([1.0, 1.0], [1.0, 1.0], ["a"])
    with pytest.raises(EngineInputError, match="confidence is 1.0"):
        paired_ratio([1.0, 1.0], [1.0, 1.0], ["a", "a"], confidence=1.0)
    with pytest.raises(EngineInputError, match="num_samples is 0"):
        paired_ratio([1.0, 1.0], [1.0, 1.0], ["a", "a"], num_samples=0)
    with pytest.raises(EngineInputError, match="confidence is 95"):
        losing([1.0, 1.0], [1.0, 1.0], 95)


def test_losing_needs_a_clear_loss() -> None:
    stock = [1.0, 1.1, 0.9, 1.0]
    assert losing(stock, [1.5, 1.6, 1.4, 1.55])
    assert not losing(stock, [0.9, 1.0, 0.8, 0.9])
    assert not losing(stock, [0.9, 1.3, 0.85, 1.05]), "slower on average, but not surely"
    assert not losing(stock, stock), "equal is not losing"


def test_losing_pairs_units_so_that_long_prompts_do_not_drown_a_steady_loss() -> None:
    stock = [1.0, 30.0, 2.0, 60.0, 4.0]
    config = [seconds + 0.1 * (index + 8) for index, seconds in enumerate(stock)]
    assert losing(stock, config)


def test_losing_rarely_raises_a_false_alarm() -> None:
    generator = np.random.default_rng(3)
    alarms = sum(
        losing(generator.normal(1, 0.1, 5).tolist(), generator.normal(1, 0.1, 5).tolist(), 0.99)
        for _ in range(1000)
    )
    assert alarms <= 25  # expected 10


def test_student_quantile_matches_the_tables() -> None:
    table = {(1, 0.975): 12.7062, (2, 0.975): 4.30265, (3, 0.975): 3.18245, (7, 0.99): 2.99795}
    for (degrees, probability), value in table.items():
        assert student_quantile(probability, degrees) == pytest.approx(value, rel=2e-3)


def test_few_units_that_all_favour_one_side_prove_nothing() -> None:
    """Under no true effect, four units favour one side in one of eight runs: an interval inside
    their range would call that a winner far too often.
    """
    rng = random.Random(5)
    trials, wins = 400, {2: 0, 4: 0, 8: 0}
    for units in wins:
        for _ in range(trials):
            stock = [1.0 + 0.1 * rng.gauss(0, 1) for _ in range(units)]
            config = [1.0 + 0.1 * rng.gauss(0, 1) for _ in range(units)]
            wins[units] += paired_ratio(stock, config, ["x"] * units, num_samples=200).low > 1.0
    assert all(count / trials < 0.05 for count in wins.values()), wins
