"""A Gaussian process over the speed-ups measured so far, to rank what to measure next.

The kernel is mostly additive: every parameter's own effect is shared by all configurations of a
family, so a dozen measurements say which block size, exit layer and draft vocabulary are good even
where they were never tried together (additive Gaussian processes, Duvenaud et al. 2011). The rest
is a product over the parameters, for what is good only in combination. Families share nothing but
the mean. Ranking is by the upper confidence bound (Srinivas et al. 2010).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.parameters import parameters_of

SPREAD = 0.3  # of log speed-ups within a family
NOISE = 0.06  # of a first measurement's log speed-up
TOGETHER = 0.3  # share of the spread that parameters explain only in combination
KAPPA = 1.0  # standard deviations that an unknown configuration is taken to be better
_OCTAVE = 0.5  # correlation length of sizes and counts
_STEP = 1.0  # of steps on a grid of doublings
_THRESHOLD = 0.2  # of probabilities and factors
_DEPTH = 0.2  # of layers, as a share of the model's

Floats = npt.NDArray[np.float64]
Parameters = Mapping[str, Any]


def upper_bounds(
    candidates: Sequence[SpecConfig], ratios: Mapping[SpecConfig, float], facts: SpaceFacts
) -> list[float]:
    """The optimistic log speed-up of each candidate, given the ``ratios`` of measured ones, 0 for
    those that failed or are infeasible: these count like the slowest. NotExpressibleError for a
    configuration outside the searched space.
    """
    if not candidates:
        return []
    slowest = min((ratio for ratio in ratios.values() if ratio > 0.0), default=1.0)
    mean = _mean_log(ratios, slowest)
    families = {config.drafter for config in candidates}
    seen = [(c, ratio or slowest) for c, ratio in ratios.items() if c.drafter in families]
    points = [_coordinates(config, facts) for config, _ in seen]
    asked = [_coordinates(config, facts) for config in candidates]
    logs = np.log([ratio for _, ratio in seen])
    between = _kernel(points, points) + NOISE**2 * np.eye(len(points))
    across = _kernel(asked, points)
    weights = np.linalg.solve(between, across.T)
    variance = SPREAD**2 - (across * weights.T).sum(axis=1)
    expected = mean + weights.T @ (logs - mean)
    bounds: Floats = expected + KAPPA * np.sqrt(np.maximum(variance, 0.0))
    return [float(bound) for bound in bounds]


def _mean_log(ratios: Mapping[SpecConfig, float], slowest: float) -> float:
    logs = [math.log(ratio or slowest) for ratio in ratios.values()]
    return sum(logs) / len(logs) if logs else 0.0


def _coordinates(config: SpecConfig, facts: SpaceFacts) -> Parameters:
    """Each parameter in units of its correlation length; choices stay as they are."""
    found: dict[str, Any] = {}
    for name, value in parameters_of(config, facts).items():
        knob = name.split(".", 1)[1]
        if isinstance(value, str):
            found[name] = value
        elif isinstance(value, float):
            found[name] = value / _THRESHOLD
        elif knob in ("exit_layer", "skip_start", "skip_count"):
            found[name] = value / (_DEPTH * facts.num_layers)
        elif knob == "draft_vocab_step":
            found[name] = value / _STEP
        else:
            found[name] = math.log2(1 + value) / _OCTAVE
    return {"family": config.drafter, **found}


def _kernel(left: Sequence[Parameters], right: Sequence[Parameters]) -> Floats:
    """Covariances [left, right]."""
    rows = [[_covariance(a, b) for b in right] for a in left]
    return np.array(rows, dtype=np.float64).reshape(len(left), len(right))


def _covariance(left: Parameters, right: Parameters) -> float:
    if left["family"] != right["family"]:
        return 0.0
    names = (left.keys() | right.keys()) - {"family"}
    alike = [_correlation(left.get(name), right.get(name)) for name in sorted(names)]
    if not alike:
        return SPREAD**2
    apart = sum(alike) / len(alike)
    return SPREAD**2 * ((1 - TOGETHER) * apart + TOGETHER * math.prod(alike))


def _correlation(left: Any, right: Any) -> float:
    """Of one parameter's effect at two values; a choice, or a parameter that one of the two does
    not read, counts as one correlation length apart.
    """
    if left == right:
        return 1.0
    if isinstance(left, float) and isinstance(right, float):
        return math.exp(-abs(left - right))
    return math.exp(-1.0)
