"""Which tokens a top-k, top-p or min-p cut could have kept, had the logits moved by the measured
noise.

A cut turns a tiny change of one logit into a token's presence or absence. For token forcing the
support is therefore bounded from both sides: ``firm`` tokens are kept, and tokens that are not
``possible`` are cut, whatever a change of ``tolerance`` does. With tolerance 0 both are the support
itself, but for tokens exactly at its edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from draftsmith.engine.types import Sampling


@dataclass(frozen=True, slots=True)
class SupportBounds:
    """Masks ``[V]`` bool; ``firm`` is a subset of ``possible``."""

    firm: torch.Tensor
    possible: torch.Tensor


def support_bounds(warm: torch.Tensor, sampling: Sampling, tolerance: float) -> SupportBounds:
    """Bounds of what ``sampling.cut`` keeps of one row of tempered logits ``[V]``, in the same
    order of cuts: min-p, top-k, top-p of what is left.
    """
    return SupportBounds(
        firm=_support(warm, sampling, -tolerance), possible=_support(warm, sampling, tolerance)
    )


def margin_at_cut(
    warm: torch.Tensor,
    noise: torch.Tensor,
    sampling: Sampling,
    emitted: int,
    tolerance: float,
) -> float | None:
    """How far ``emitted`` is behind the best token that is certainly kept (0 when it leads), or
    None when no change within ``tolerance`` makes it the choice. ``noise`` ``[V]`` is the row's
    Gumbel noise.
    """
    bounds = support_bounds(warm, sampling, tolerance)
    if not bool(bounds.possible[emitted]):
        return None
    values = warm + noise
    firm = values[bounds.firm]
    margin = float(firm.max() - values[emitted]) if firm.numel() else 0.0
    return max(margin, 0.0) if margin <= tolerance else None


def _support(warm: torch.Tensor, sampling: Sampling, slack: float) -> torch.Tensor:
    """What is kept when every limit gives way by ``slack`` (negative: tightens)."""
    keep = torch.isfinite(warm)
    if sampling.min_p > 0.0:
        keep &= warm >= float(warm.max()) + math.log(sampling.min_p) - slack
    if 0 < sampling.top_k < int(keep.sum()):
        ordered = warm[keep].sort(descending=True).values
        last, next_out = float(ordered[sampling.top_k - 1]), float(ordered[sampling.top_k])
        keep &= _inside(warm, last, next_out, slack)
    if sampling.top_p < 1.0:
        kept_by_mass = _top_p(warm, keep, sampling.top_p, slack)
        dropped = warm[keep & ~kept_by_mass]
        if dropped.numel():
            last, next_out = float(warm[kept_by_mass].min()), float(dropped.max())
            keep &= _inside(warm, last, next_out, slack)
    return keep


def _inside(warm: torch.Tensor, last: float, next_out: float, slack: float) -> torch.Tensor:
    """Tokens on the kept side of a cut between the values ``last`` (kept) and ``next_out``."""
    return warm >= last - slack if slack >= 0.0 else warm > next_out - slack


def _top_p(warm: torch.Tensor, keep: torch.Tensor, top_p: float, slack: float) -> torch.Tensor:
    """Top-p over the kept tokens. Logits that move by ``slack`` against each other change the odds
    of a set by at most that factor, so the limit on the mass before a token moves by it.
    """
    odds = top_p / (1.0 - top_p) * math.exp(slack)
    ordered, order = torch.sort(warm.masked_fill(~keep, -torch.inf), descending=True, stable=True)
    mass = torch.softmax(ordered.double(), dim=-1)
    within = (mass.cumsum(-1) - mass) < odds / (1.0 + odds)
    kept = torch.zeros_like(keep)
    kept[order[within]] = True
    return kept & keep
