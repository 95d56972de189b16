"""The deployment: what one tuning run is for, validated and frozen.

A YAML document and the command line's flags become one ``Deployment`` through ``load_deployment``.
Layout of the document (every key but ``target`` and ``workload`` is optional)::

    target: {path: DIR, dtype: bfloat16, device: cpu, num_threads: 2}     # or just the path
    drafters: [ngram, suffix, recycle, early_exit, draft_model]
    draft_model: DIR
    regime: {concurrency: 1, max_tokens: 128, temperature: 0, top_p: 1, seed: 0, ...}
    workload: {path: FILE, limit: 40, heldout_fraction: 0.3, max_prompt_tokens: 1024}   # or just
    the path objective: {metric: throughput, max_memory_gb: 40}
    budget: 10m
    max_trials: 40
    seed: 0

Flags use the same names, nested ones with a dot: ``{"regime.temperature": 0.8, "budget": "10m"}``;
a flag beats the document, and a flag of None was not given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from draftsmith.engine.job import TargetRef
from draftsmith.engine.types import Sampling
from draftsmith.tuner.duration import parse_budget
from draftsmith.tuner.errors import TunerInputError, near_match

FAMILIES = ("ngram", "suffix", "recycle", "early_exit", "draft_model")
MAX_CONCURRENCY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How requests arrive and how their tokens are chosen."""

    concurrency: int = 1
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Where the prompts are. ``limit`` caps the rows read; ``heldout_fraction`` of them confirm."""

    path: str
    limit: int | None = None
    heldout_fraction: float = 0.3
    max_prompt_tokens: int | None = 1024


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
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One deployment with its effort. ``drafters`` are the families to search, ``draft_model`` a
    folder.
    """

    target: TargetRef
    workload: WorkloadSpec
    drafters: tuple[str, ...] = FAMILIES
    draft_model: str | None = None
    regime: Regime = field(default_factory=Regime)
    objective: Objective = field(default_factory=Objective)
    effort: Effort = field(default_factory=Effort)

    def description(self) -> dict[str, Any]:
        """Everything that makes two runs comparable, JSON-able: not the effort. Model and workload
        count by content (see ``checkpoint_identity``), so a moved folder is the same deployment.
        """
        return {
            "target": {
                "checkpoint": checkpoint_identity(self.target.path),
                "dtype": self.target.dtype,
                "device": self.target.device,
                "num_threads": self.target.num_threads,
            },
            "drafters": sorted(self.drafters),
            "draft_model": self.draft_model and checkpoint_identity(self.draft_model),
            "regime": json.loads(json.dumps(asdict(self.regime))),
            "workload": {
                "sha256": _file_sha256(Path(self.workload.path)),
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


def load_deployment(
    document: str | Path | Mapping[str, Any] | None, flags: Mapping[str, Any] | None = None
) -> Deployment:
    """The deployment of a YAML file (or its parsed content) with flags on top. TunerInputError
    names every unknown key with its near match, and every value outside its limits.
    """
    raise NotImplementedError


def checkpoint_identity(path: str) -> str:
    """A short text that follows a checkpoint's content: sha256 over the small JSON files and the
    names and sizes of the weight files. A name that is no path (the embedded default) stands for
    itself.
    """
    raise NotImplementedError


def _file_sha256(path: Path) -> str:
    raise NotImplementedError
