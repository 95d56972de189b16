"""The one clock, and what paired timings say: ratio of sums, its interval, when to give up.

Seconds are always paired by unit: element ``i`` of stock's and of the configuration's sequence
timed the same prompt (or group of prompts). The ratio is stock over configuration, so above 1 is
faster than stock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from draftsmith.engine.errors import EngineInputError

Floats = npt.NDArray[np.float64]


class Clock(Protocol):
    """Seconds from a fixed but unknown origin, never going back."""

    def now(self) -> float: ...


class MonotonicClock:
    """``time.perf_counter`` after the device has finished what was queued on it (CUDA only; on the
    CPU every operation has ended when it returns).
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self._device = torch.device(device)

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """``ratio`` is the sum of stock's seconds over the sum of the configuration's; ``low`` and
    ``high`` its confidence interval, ``(0, inf)`` for a single unit, which says nothing about
    spread. ``by_category`` holds the same ratio within each category, and
    ``geometric_mean_by_category`` their geometric mean, every category counting once.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    num_units: int
    geometric_mean_by_category: float
    by_category: Mapping[str, float] = field(default_factory=dict)


def ratio_of_sums(stock_seconds: Sequence[float], config_seconds: Sequence[float]) -> float:
    """The headline: total time of stock over total time of the configuration."""
    stock, config = _paired(stock_seconds, config_seconds)
    return float(stock.sum() / config.sum())


def mean_of_ratios(stock_seconds: Sequence[float], config_seconds: Sequence[float]) -> float:
    """Mean over units of stock's time over the configuration's. Not the headline: it weighs a short
    prompt like a long one.
    """
    stock, config = _paired(stock_seconds, config_seconds)
    return float((stock / config).mean())


def paired_ratio(
    stock_seconds: Sequence[float],
    config_seconds: Sequence[float],
    categories: Sequence[str],
    *,
    num_samples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
) -> RatioInterval:
    """Ratio of sums with a paired bootstrap interval, resampled within each category.

    Categories of one unit cannot be resampled and are pooled (with the largest category when there
    is only one such). The percentiles are widened for few units as in Hesterberg, "What teachers
    should know about the bootstrap" (2015), section 3: without it an interval from 8 units covers
    too little. A resample never leaves the range of the units seen, which for two to six of them is
    too narrow however far it is cut, so the interval is at least Student's around the ratio
    (Cochran, "Sampling Techniques", section 6.4). EngineInputError for empty, unequal, non-finite
    or non-positive seconds.
    """
    stock, config = _paired(stock_seconds, config_seconds)
    if len(categories) != len(stock):
        raise EngineInputError(
            f"{len(categories)} categories for {len(stock)} timed units: give one a unit"
        )
    if num_samples < 1:
        raise EngineInputError(f"num_samples is {num_samples}: draw at least 1")
    _check_confidence(confidence)
    groups = _group(categories)
    by_category = {
        name: float(stock[units].sum() / config[units].sum()) for name, units in groups.items()
    }
    low, high = 0.0, math.inf
    if len(stock) > 1:
        strata = _strata(groups)
        samples = _resampled_ratios(stock, config, strata, num_samples, seed)
        tail = _widened_tail(confidence, len(stock), len(strata))
        low, high = (float(edge) for edge in np.quantile(samples, [tail, 1.0 - tail]))
        reach = _student_reach(stock, config, strata, confidence)
        ratio = float(stock.sum() / config.sum())
        low, high = max(0.0, min(low, ratio - reach)), max(high, ratio + reach)
    return RatioInterval(
        ratio=float(stock.sum() / config.sum()),
        low=low,
        high=high,
        confidence=confidence,
        num_units=len(stock),
        geometric_mean_by_category=math.exp(
            sum(math.log(ratio) for ratio in by_category.values()) / len(by_category)
        ),
        by_category=by_category,
    )


def losing(
    stock_seconds: Sequence[float], config_seconds: Sequence[float], confidence: float = 0.95
) -> bool:
    """True when the ratio of sums is below 1 even at its upper end: a one-sided Student bound on
    the mean paired difference (stock minus configuration), which has the ratio's sign. False for a
    single unit. Each look at a growing prefix is a further chance of a false alarm, so a caller
    that looks often asks for a higher ``confidence``.
    """
    stock, config = _paired(stock_seconds, config_seconds)
    _check_confidence(confidence)
    if len(stock) < 2:
        return False
    gain = stock - config
    error = float(gain.std(ddof=1)) / math.sqrt(len(gain))
    return float(gain.mean()) + student_quantile(confidence, len(gain) - 1) * error < 0.0


def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t: closed form for 1 and 2 degrees of freedom, from 3 on the expansion
    26.7.5 of Abramowitz and Stegun (within 0.4 % up to probability 0.99).
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        centred = 2.0 * probability - 1.0
        return centred * math.sqrt(2.0 / (1.0 - centred * centred))
    z = NormalDist().inv_cdf(probability)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + g1 / degrees + g2 / degrees**2 + g3 / degrees**3 + g4 / degrees**4


def _paired(
    stock_seconds: Sequence[float], config_seconds: Sequence[float]
) -> tuple[Floats, Floats]:
    """Both as arrays; EngineInputError unless they pair up and every time is finite and above 0."""
    stock = np.asarray(stock_seconds, dtype=np.float64)
    config = np.asarray(config_seconds, dtype=np.float64)
    if len(stock) != len(config):
        raise EngineInputError(
            f"{len(stock)} timings of stock against {len(config)} of the configuration: they must"
            " pair up unit by unit"
        )
    if len(stock) == 0:
        raise EngineInputError("no timed units: measure at least one before comparing")
    for name, seconds in (("stock", stock), ("configuration", config)):
        wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds > 0.0)))
        if len(wrong):
            raise EngineInputError(
                f"unit {int(wrong[0])} of the {name} took {seconds[wrong[0]]} s: a time must be"
                " finite and above 0; leave failed units out on both sides"
            )
    return stock, config


def _check_confidence(confidence: float) -> None:
    if not 0.0 < confidence < 1.0:
        raise EngineInputError(f"confidence is {confidence}: choose between 0 and 1, say 0.95")


def _group(categories: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for unit, category in enumerate(categories):
        groups.setdefault(category, []).append(unit)
    return dict(sorted(groups.items()))


def _strata(groups: Mapping[str, list[int]]) -> list[list[int]]:
    """Units to resample together, at least two in each (given at least two in all)."""
    strata = [list(units) for units in groups.values() if len(units) > 1]
    singles = [units[0] for units in groups.values() if len(units) == 1]
    if len(singles) > 1 or (singles and not strata):
        strata.append(singles)
    elif singles:
        max(strata, key=len).extend(singles)
    return strata


def _resampled_ratios(
    stock: Floats, config: Floats, strata: Sequence[Sequence[int]], num_samples: int, seed: int
) -> Floats:
    """Ratios of sums of ``num_samples`` resamples: [num_samples]."""
    generator = np.random.default_rng(seed)
    totals = np.zeros((2, num_samples))
    for units in strata:
        drawn = np.asarray(units)[generator.integers(len(units), size=(num_samples, len(units)))]
        totals[0] += stock[drawn].sum(axis=1)
        totals[1] += config[drawn].sum(axis=1)
    ratios: Floats = totals[0] / totals[1]
    return ratios


def _student_reach(
    stock: Floats, config: Floats, strata: Sequence[Sequence[int]], confidence: float
) -> float:
    """Half width of Student's interval of the ratio of sums, linearised, within strata."""
    residuals = stock - stock.sum() / config.sum() * config
    variance = sum(len(units) * float(residuals[list(units)].var(ddof=1)) for units in strata)
    degrees = len(stock) - len(strata)
    reach = student_quantile(0.5 + confidence / 2.0, degrees) * math.sqrt(variance)
    return reach / float(config.sum())


def _widened_tail(confidence: float, num_units: int, num_strata: int) -> float:
    """Share of the resamples to cut on each side, for an interval as wide as Student's."""
    degrees = num_units - num_strata
    upper = student_quantile(0.5 + confidence / 2.0, degrees)
    return NormalDist().cdf(-upper * math.sqrt(num_units / degrees))
