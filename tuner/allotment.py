"""How a budget is shared out, from the measured speed of stock. Pure arithmetic, all seconds.

Costs follow one scale: the seconds stock needs for a prompt (all its turns). Forcing outputs
through stock and warming up add a share of it. A trial runs stock and the configuration; so does
each confirming pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftsmith.tuner.duration import format_duration
from draftsmith.tuner.errors import BudgetError

JUDGING = 0.25  # forcing, warm-up and hand-over, as a share of the decoding they follow
FIXED_SHARE = 0.55  # of the budget that baseline and confirmation may take together
MIN_PROMPTS = 4  # fewest tuning and fewest held-out prompts
MIN_TRIALS = 2  # rung-0 trials that the smallest run holds
MIN_PASSES, MAX_PASSES = 2, 6
START_S = 5.0  # a job's own overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What there is to share: seconds left, prompts at hand, workers, baselines beside stock."""

    left_s: float
    num_tuning: int
    num_heldout: int
    num_workers: int = 1
    num_incumbents: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """Prompts to use and seconds to reserve for the confirmation."""

    num_tuning: int
    num_heldout: int
    confirm_s: float


def allot(stock_s: float, supply: Supply) -> Allotment:
    """The largest numbers of prompts whose baseline and confirmation fit their share of the budget,
    up to all of them. BudgetError, naming the minimum, when not even the smallest run fits.
    """
    smallest = _cut(supply, MIN_PROMPTS / max(1, supply.num_heldout))
    minimum = minimum_s(stock_s, supply)
    if supply.left_s < minimum:
        raise BudgetError(
            f"the budget leaves {format_duration(supply.left_s)}, but the smallest run of this "
            f"deployment needs about {format_duration(math.ceil(minimum))}: stock takes "
            f"{stock_s:.2g} s a prompt here. Give a larger --budget, fewer output tokens "
            "(--max-tokens), or shorter prompts"
        )
    best = smallest
    for heldout in range(MIN_PROMPTS, supply.num_heldout + 1):
        cut = _cut(supply, heldout / supply.num_heldout)
        fixed = _baseline_s(stock_s, cut, supply) + confirm_s(
            stock_s, cut.num_heldout, supply, passes=MIN_PASSES
        )
        if fixed > FIXED_SHARE * supply.left_s:
            break
        best = cut
    reserve = confirm_s(stock_s, best.num_heldout, supply, passes=MIN_PASSES)
    return Allotment(
        num_tuning=best.num_tuning,
        num_heldout=best.num_heldout,
        confirm_s=min(reserve, FIXED_SHARE * supply.left_s),
    )


def minimum_s(stock_s: float, supply: Supply) -> float:
    """Seconds of the smallest run: few prompts, two trials, one confirming pass."""
    cut = Allotment(
        num_tuning=min(MIN_PROMPTS, supply.num_tuning),
        num_heldout=min(MIN_PROMPTS, supply.num_heldout),
        confirm_s=0.0,
    )
    trial = trial_s(stock_s, cut.num_tuning)
    return (
        _baseline_s(stock_s, cut, supply)
        + MIN_TRIALS * trial
        + confirm_s(stock_s, cut.num_heldout, supply, passes=1)
    )


def trial_s(stock_s: float, num_prompts: int) -> float:
    """One trial over so many prompts: stock and a configuration that is no slower."""
    return START_S * min(1.0, stock_s) + 2 * num_prompts * stock_s * (1 + JUDGING)


def confirm_s(stock_s: float, num_prompts: int, supply: Supply, *, passes: int) -> float:
    """The confirmation: stock, finalist and incumbent in every pass, every output forced once."""
    names = 2 + supply.num_incumbents
    work = num_prompts * stock_s * names * (passes + JUDGING)
    return START_S * min(1.0, stock_s) + work / _share(num_prompts, supply)


def _baseline_s(stock_s: float, cut: Allotment, supply: Supply) -> float:
    prompts = cut.num_tuning + cut.num_heldout
    return prompts * stock_s * (1 + JUDGING) / _share(prompts, supply)


def _share(num_prompts: int, supply: Supply) -> int:
    """Workers that can take part."""
    return max(1, min(supply.num_workers, num_prompts // 2))


def _cut(supply: Supply, share: float) -> Allotment:
    """The same share of both parts, no part under its minimum."""
    share = min(1.0, share)
    return Allotment(
        num_tuning=min(supply.num_tuning, max(MIN_PROMPTS, math.ceil(supply.num_tuning * share))),
        num_heldout=min(
            supply.num_heldout, max(MIN_PROMPTS, math.floor(supply.num_heldout * share + 1e-9))
        ),
        confirm_s=0.0,
    )
