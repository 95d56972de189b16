"""How a budget is shared out, from the measured speed of stock. Pure arithmetic, all seconds.

Costs follow one scale: the seconds stock needs for a prompt (all its turns). Forcing outputs
through stock and warming up add a share of it. A trial runs stock and the configuration; so does
each confirming pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from draftsmith.engine.units import unit_size
from draftsmith.tuner.duration import format_duration
from draftsmith.tuner.errors import BudgetError

JUDGING = 0.25  # forcing, warm-up and hand-over, as a share of the decoding they follow
FIXED_SHARE = 0.55  # of the budget that baseline and confirmation may take together
MIN_PROMPTS = 4  # fewest tuning and fewest held-out prompts, where a prompt is timed alone
MIN_UNITS = 2  # fewest timed units of either part: one alone has no interval
CLIMB_SHARE = 0.25  # of the search's time that one climb over all tuning prompts may take
MIN_TRIALS = 2  # rung-0 trials that the smallest run holds
MIN_PASSES, MAX_PASSES = 2, 6
START_S = 5.0  # a job's own overhead
SHORT_UNIT_S = 0.3  # a timed unit shorter than this is repeated: a stall would be most of it
REPEATS = 3  # of which the median counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What there is to share: seconds left, prompts at hand, workers, baselines beside stock."""

    left_s: float
    num_tuning: int
    num_heldout: int
    num_workers: int = 1
    num_incumbents: int = 0
    concurrency: int = 1

    @property
    def min_prompts(self) -> int:
        """Fewest tuning and fewest held-out prompts of a run."""
        return max(MIN_PROMPTS, MIN_UNITS * unit_size(self.concurrency))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """Prompts to use."""

    num_tuning: int
    num_heldout: int


def allot(stock_s: float, supply: Supply) -> Allotment:
    """The largest numbers of prompts whose baseline and confirmation fit their share of the budget,
    up to all of them, with no more tuning prompts than leave the search time to try several
    configurations. BudgetError, naming the minimum, when not even the smallest run fits.
    """
    minimum = minimum_s(stock_s, supply)
    if supply.left_s < minimum:
        raise BudgetError(
            f"the budget leaves {format_duration(supply.left_s)}, but the smallest run of this "
            f"deployment needs about {format_duration(math.ceil(minimum))}: stock takes "
            f"{stock_s:.2g} s a prompt here. Give a larger --budget, fewer output tokens "
            "(--max-tokens), or shorter prompts"
        )
    least = supply.min_prompts
    best = cut(supply, 0.0, least)
    for heldout in range(min(least, supply.num_heldout), supply.num_heldout + 1):
        larger = cut(supply, heldout / supply.num_heldout, least)
        reserve = confirm_s(stock_s, larger.num_heldout, supply, passes=MIN_PASSES)
        smallest = replace(larger, num_tuning=min(least, larger.num_tuning))
        search_s = supply.left_s - baseline_s(stock_s, smallest, supply) - reserve
        each_s = 2 * stock_s * (repeats_of(stock_s, supply.concurrency) + JUDGING)
        climb = int(CLIMB_SHARE * search_s / each_s)
        larger = replace(larger, num_tuning=min(larger.num_tuning, least + max(0, climb)))
        if baseline_s(stock_s, larger, supply) + reserve > FIXED_SHARE * supply.left_s:
            break
        best = larger
    return best


def minimum_s(stock_s: float, supply: Supply) -> float:
    """Seconds of the smallest run: few prompts, two trials, one confirming pass."""
    smallest = cut(supply, 0.0, supply.min_prompts)
    return (
        baseline_s(stock_s, smallest, supply)
        + MIN_TRIALS * trial_s(stock_s, smallest.num_tuning, supply.concurrency)
        + confirm_s(stock_s, smallest.num_heldout, supply, passes=1)
    )


def trial_s(stock_s: float, num_prompts: int, concurrency: int) -> float:
    """One trial over so many prompts: stock and a configuration that is no slower."""
    work = 2 * num_prompts * stock_s * (repeats_of(stock_s, concurrency) + JUDGING)
    return START_S * min(1.0, stock_s) + work


def repeats_of(stock_s: float, concurrency: int) -> int:
    """Times that a trial runs each of its units."""
    return REPEATS if unit_size(concurrency) * stock_s < SHORT_UNIT_S else 1


def confirm_s(stock_s: float, num_prompts: int, supply: Supply, *, passes: int) -> float:
    """The confirmation: stock, finalist and incumbent in every pass, every output forced once."""
    names = 2 + supply.num_incumbents
    work = _in_a_row(num_prompts, supply) * stock_s * names * (passes + JUDGING)
    return START_S * min(1.0, stock_s) + work


def reserve_s(stock_s: float, num_prompts: int, supply: Supply) -> float:
    """Of the seconds left after the baseline, those kept for the confirmation: two passes where
    that leaves the search its smallest number of trials, and one pass at least.
    """
    trials = MIN_TRIALS * trial_s(stock_s, supply.min_prompts, supply.concurrency)
    share = min(FIXED_SHARE * supply.left_s, supply.left_s - trials)
    one, wanted = (confirm_s(stock_s, num_prompts, supply, passes=n) for n in (1, MIN_PASSES))
    return min(wanted, max(one, share), supply.left_s)


def baseline_s(stock_s: float, used: Allotment, supply: Supply) -> float:
    """Stock over so many prompts, every output forced once."""
    prompts = used.num_tuning + used.num_heldout
    return _in_a_row(prompts, supply) * stock_s * (1 + JUDGING)


def _in_a_row(num_prompts: int, supply: Supply) -> int:
    """Prompts that the busiest worker takes, in whole timed units."""
    unit = unit_size(supply.concurrency)
    units = max(1, num_prompts // unit)
    return min(num_prompts, math.ceil(units / supply.num_workers) * unit)


def cut(whole: Supply | Allotment, share: float, least: int) -> Allotment:
    """The same share of both parts, no part under ``least`` prompts unless it has no more."""
    share = min(1.0, share)
    tuning, heldout = whole.num_tuning, whole.num_heldout
    return Allotment(
        num_tuning=min(tuning, max(least, math.ceil(tuning * share))),
        num_heldout=min(heldout, max(least, math.floor(heldout * share + 1e-9))),
    )
