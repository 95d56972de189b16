"""What a tuning run answers: everything that ``tune --json`` prints."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["winner", "off", "inconclusive", "incumbent stays"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio of speeds (stock's seconds over the configuration's) with its paired bootstrap
    interval at ``confidence``; ``high`` is infinite when a single unit was timed.
    ``geometric_mean`` is over categories, the secondary figure.
    """

    ratio: float
    low: float
    high: float
    num_prompts: int
    geometric_mean: float | None = None
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Lossless:
    """The gate's verdict over every output of the recommended configuration on held-out prompts."""

    verdict: Literal["lossless", "lossless in distribution", "lossy", "not measured"]
    num_outputs: int = 0
    num_exact: int = 0
    num_ties: int = 0
    num_divergent: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A finalist, or the incumbent, against a baseline on held-out prompts. ``verdict`` is faster,
    slower or inconclusive.
    """

    config_text: str
    against: str  # stock | incumbent
    interval: Interval
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCount:
    """Configurations by how their first measuring ended (``done``: measured, ``stopped_early`` of
    them until they had clearly lost; ``unfinished``: the search time was up), and all measuring
    jobs of exploring.
    """

    configurations: int = 0
    done: int = 0
    stopped_early: int = 0
    unfinished: int = 0
    failed: int = 0
    infeasible: int = 0
    jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The verdict of one run. ``config`` is the recommended configuration as normalised JSON
    (drafter none when the recommendation is off), ``finalist`` the one whose confirmation the
    figures describe. Speeds are tokens/s over the confirmed prompts. ``absent`` names design steps
    that this version does not take.
    """

    verdict: Verdict
    summary: str
    run: str  # uuid
    resumed: bool
    config: dict[str, Any]
    config_text: str
    finalist: dict[str, Any] | None = None
    stock_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    ratio: Interval | None = None  # end to end
    decode_ratio: Interval | None = None
    tokens_per_step: float | None = None
    acceptance_by_position: tuple[float, ...] = ()
    lossless: Lossless = field(default_factory=lambda: Lossless(verdict="not measured"))
    comparisons: tuple[Comparison, ...] = ()
    incumbent: dict[str, Any] | None = None  # name, config, notes
    trials: TrialCount = field(default_factory=TrialCount)
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)  # tuning, heldout, duplicates
    top: tuple[dict[str, Any], ...] = ()  # best measured configurations on the tuning prompts
    notes: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    bundle_path: str | None = None
    next_command: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; an infinite end of an interval is null."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
