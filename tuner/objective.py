"""Evidence to score and feasibility. Losslessness first: a lossy configuration has no score at all.

Headline: the sum of stock's seconds over the sum of the configuration's, over units with equal
outputs, with its paired bootstrap interval stratified by category.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftsmith.engine.timing import paired_ratio
from draftsmith.tuner.deployment import Objective
from draftsmith.tuner.evidence import Evidence, Pair, finite
from draftsmith.tuner.result import Interval

GIB = 1024**3
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """``interval`` is None when there is nothing to compare. ``feasible`` False has a ``reason``;
    an infeasible score must never be ranked, whatever its interval.
    """

    feasible: bool
    reason: str = ""
    interval: Interval | None = None

    @property
    def ratio(self) -> float:
        """Speed-up over the baseline; 0 when infeasible."""
        return self.interval.ratio if self.feasible and self.interval else 0.0


def score(evidence: Evidence, objective: Objective, *, confidence: float = CONFIDENCE) -> Score:
    """Judge one configuration's evidence. BadMeasurementError when its ratio is not a finite
    number.
    """
    interval = (
        ratio_interval(evidence.pairs, confidence=confidence) if len(evidence.pairs) else None
    )
    reason = _infeasible(evidence, objective)
    if not reason and interval is None:
        reason = "no prompt's output equals stock's: there is no time that counts"
    return Score(feasible=not reason, reason=reason, interval=interval)


def ratio_interval(
    pairs: tuple[Pair, ...],
    *,
    confidence: float = CONFIDENCE,
    seconds: Callable[[Pair], tuple[float, float]] | None = None,
) -> Interval:
    """Ratio of summed seconds with its interval; ``seconds`` picks (stock's, the other's)."""
    pick = seconds or end_to_end
    picked = [pick(pair) for pair in pairs]
    result = paired_ratio(
        [stock for stock, _ in picked],
        [own for _, own in picked],
        [pair.category for pair in pairs],
        confidence=confidence,
    )
    return Interval(
        ratio=finite(result.ratio, "speed-up"),
        low=finite(result.low, "lower end of the speed-up"),
        high=result.high,
        num_prompts=sum(len(pair.request_ids) for pair in pairs),
        geometric_mean=result.geometric_mean_by_category,
        confidence=confidence,
    )


def end_to_end(pair: Pair) -> tuple[float, float]:
    return pair.stock_s, pair.config_s


def decode_only(pair: Pair) -> tuple[float, float]:
    """Prefill taken off; at least a microsecond, so that an output of one token has a ratio."""
    return (
        max(1e-6, pair.stock_s - pair.stock_prefill_s),
        max(1e-6, pair.config_s - pair.config_prefill_s),
    )


def _infeasible(evidence: Evidence, objective: Objective) -> str:
    if evidence.num_divergent:
        return f"lossy: {evidence.num_divergent} divergent outputs, first {evidence.divergence}"
    if evidence.suspect:
        return "suspect: more ties than stock's own noise explains"
    limit = objective.max_memory_gb
    peak = evidence.peak_memory_bytes
    if limit is not None and peak is not None and peak > limit * GIB:
        return f"peak memory {peak / GIB:.2f} GiB is over objective.max_memory_gb {limit:g}"
    return ""
