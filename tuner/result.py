"""What a tuning run answers: everything that ``tune --json`` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["winner", "off", "inconclusive", "incumbent stays"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A ratio of speeds (stock's seconds over the configuration's) with its 95 % interval."""

    ratio: float
    low: float
    high: float
    num_prompts: int


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
    """The finalist against one baseline on held-out prompts."""

    against: str  # stock | incumbent
    interval: Interval
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCount:
    """Configurations by how they ended, and all measuring jobs of exploring."""

    configurations: int = 0
    done: int = 0
    failed: int = 0
    infeasible: int = 0
    jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The verdict of one run. ``config`` is the recommended configuration as normalised JSON
    (drafter none when the recommendation is off), ``finalist`` the one that was confirmed. Speeds
    are tokens/s over the confirmed prompts. ``absent`` names design steps that this version does
    not take.
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
    geometric_mean: float | None = None  # over categories, end to end
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
        """Plain JSON values."""
        return asdict(self)
