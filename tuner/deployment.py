"""The deployment: what one tuning run is for, validated and frozen.

``deployment_file.load_deployment`` makes one out of a YAML document and the command line's flags.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from draftsmith.engine.job import TargetRef
from draftsmith.engine.types import Sampling
from draftsmith.engine.workload import workload_path
from draftsmith.tuner.identity import checkpoint_identity, file_sha256

FAMILIES = ("ngram", "suffix", "recycle", "early_exit", "draft_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How requests arrive and how their tokens are chosen."""

    concurrency: int = 1
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Where the prompts are. ``limit`` caps the rows read; ``heldout_fraction`` of them confirm.
    ``skip_bad_rows`` leaves out and counts rows that cannot be read, which are else refused.
    """

    path: str
    limit: int | None = None
    heldout_fraction: float = 0.3
    max_prompt_tokens: int | None = 1024
    skip_bad_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is maximised, and what a configuration must keep to be feasible at all."""

    metric: Literal["throughput"] = "throughput"
    max_memory_gb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What the search may spend. ``max_trials`` counts configurations whose measuring ended, failed
    ones too; promotions to more prompts, baseline, incumbent and confirmation are not counted.
    """

    budget_s: float = 600.0
    max_trials: int | None = None
    finalists: int = 1  # more are tried only when earlier ones fail, all under Holm's correction
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment with its effort. ``drafters`` are the families to search, ``draft_model`` a
    folder. ``fixed`` holds knobs (of ``knobs.FIXABLE``) at one value: an engine that serves chains
    only, say. It narrows the search, so another run's evidence stays comparable.
    """

    target: TargetRef
    workload: WorkloadSpec
    drafters: tuple[str, ...] = FAMILIES
    draft_model: str | None = None
    regime: Regime = field(default_factory=Regime)
    objective: Objective = field(default_factory=Objective)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = field(default_factory=Effort)

    def description(self) -> dict[str, Any]:
        """Everything that makes two runs comparable, JSON-able: not the effort. Model and workload
        count by content (see identity.py), so a moved folder is the same deployment. Skipping bad
        rows does not count: of a file that can be read without, it takes the same rows.
        """
        form = self.target.weights
        return {
            "target": {
                "checkpoint": checkpoint_identity(self.target.path),
                "dtype": self.target.dtype,
                "device": self.target.device,
                "num_threads": self.target.num_threads,
                **({} if form == "auto" else {"weights": form}),
            },
            "drafters": sorted(self.drafters),
            "draft_model": self.draft_model and checkpoint_identity(self.draft_model),
            "regime": json.loads(json.dumps(asdict(self.regime))),
            "workload": {
                "sha256": file_sha256(workload_path(self.workload.path)),
                "limit": self.workload.limit,
                "heldout_fraction": self.workload.heldout_fraction,
                "max_prompt_tokens": self.workload.max_prompt_tokens,
            },
            "objective": asdict(self.objective),
        }

    def fingerprint(self) -> str:
        """sha256 over ``description``."""
        text = json.dumps(self.description(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
