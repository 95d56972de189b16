"""What a worker is asked to measure, and what it answers: plain records, picklable, no tensors.

One kind of job serves baseline, trial and confirmation: run the named configurations interleaved
over the requests, and judge every output against stock. ``workers/measure.py`` carries it out, the
tuner composes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from draftsmith.engine.types import Request, SpecConfig, StopReason

JobStatus = Literal["ok", "oom", "timeout", "died", "error", "cancelled"]
Judgement = Literal["exact", "tie", "divergent", "distribution"]

WeightForm = Literal["auto", "plain", "bf12"]  # auto: bf12 where it pays; the bits are the same

STOCK = "stock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRef:
    """Where a worker finds the target: a checkpoint folder, a GGUF file, or the embedded default's
    name.
    """

    path: str
    dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    device: str = "cpu"
    num_threads: int | None = None
    cache_capacity: int | None = None  # rows a slot; None = what the requests need
    weights: WeightForm = "auto"

    def draft(self, path: str) -> TargetRef:
        """A draft model beside this target: the same numbers on the same device, its weights plain
        where the target's are to be.
        """
        form: WeightForm = "plain" if self.weights == "plain" else "auto"
        return TargetRef(path=path, dtype=self.dtype, device=self.device, weights=form)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInputs:
    """Frozen, hashed inputs of the drafters: the same for every configuration of one deployment."""

    draft_vocab_ids: tuple[int, ...] = ()  # ranked by frequency on the tuning part
    suffix_store: tuple[tuple[int, ...], ...] = ()
    rank_acceptance: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """``configs`` maps a name to a configuration; ``stock`` (drafter none) is always among them.
    Units (a prompt at concurrency 1, else a group of requests run together) are timed in
    alternating order of the names. ``references`` are stock's outputs where they are known already
    (request id -> token ids); a worker that measures stock again checks it against them.
    """

    job_id: str
    target: TargetRef
    requests: tuple[Request, ...]
    configs: dict[str, SpecConfig]
    concurrency: int = 1
    repeats: int = 1
    warmup_tokens: int = 16
    inputs: DraftInputs = field(default_factory=DraftInputs)
    references: dict[str, tuple[int, ...]] = field(default_factory=dict)
    margin_noise: float | None = None  # measured on the baseline; None = measure in this job
    stock_ties: int = 0  # positions of stock's own outputs that forced stock chose otherwise,
    stock_positions: int = 0  # of so many, on the baseline; 0 = measure here if anything ties
    force_all: bool = False  # token-force every output, also those equal to stock's
    stop_early: bool = False  # end after a losing prefix of units (paired bound), see measure.py
    timeout_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTiming:
    """One timed unit of one configuration: seconds on the worker's monotonic clock."""

    config: str
    unit: int
    repeat: int
    request_ids: tuple[str, ...]
    category: str
    seconds: float
    prefill_s: float
    num_tokens: int
    num_steps: int
    num_drafted: int
    num_accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalTurn:
    """One timed unit of another engine, on its own clock. ``prefill_s``: seconds until the first
    token, summed over what it ran one after another; None where it does not tell.
    """

    rival: str
    unit: int
    repeat: int
    request_ids: tuple[str, ...]
    category: str
    seconds: float
    prefill_s: float | None
    token_ids: tuple[tuple[int, ...], ...]  # a request


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """One output and its verdict. ``position`` and ``margin`` describe the worst mismatch, if any.
    ``accepted_by_position[i]`` counts steps that accepted at least i + 1 draft tokens.
    """

    config: str
    request_id: str
    token_ids: tuple[int, ...]
    stop_reason: StopReason
    judgement: Judgement
    num_ties: int = 0
    position: int | None = None
    emitted: int | None = None
    expected: int | None = None
    margin: float | None = None
    detail: str = ""
    accepted_by_position: tuple[int, ...] = ()
    drafted_by_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """``status`` other than ok carries ``reason`` and whatever was measured before."""

    job_id: str
    status: JobStatus
    reason: str = ""
    refused: bool = False  # an error of what the job asks for, not of the machine
    timings: tuple[UnitTiming, ...] = ()
    outputs: tuple[OutputRecord, ...] = ()
    rival_turns: tuple[RivalTurn, ...] = ()
    margin_noise: float | None = None
    stock_ties: int = 0  # as measured in this job, for later ``MeasureJob.stock_ties``
    stock_positions: int = 0
    peak_memory_bytes: dict[str, int] = field(default_factory=dict)
    stopped_early: bool = False
    worker: str = ""
    kernel_note: str = ""  # why this worker's kernels ran in their slower form; empty if not
    wall_s: float = 0.0
