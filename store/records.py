"""What goes into the store and comes out: frozen records of plain JSON-able values.

Times are seconds since the epoch, UTC, from the repository's clock. ``id`` values are the
database's keys. A field typed ``Json`` is a dict with string keys and finite numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
RunState = Literal["running", "done", "interrupted", "failed"]
TrialState = Literal["queued", "leased", "done", "failed", "pruned"]
FinalTrialState = Literal["done", "failed", "pruned"]

MAX_ATTEMPTS = 3  # leases a trial may lose before it is failed with reason "lost 3 times"
FINISHED: tuple[TrialState, ...] = ("done", "failed", "pruned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may spend; None is unlimited. ``trials`` is enforced by ``add_trials``."""

    trials: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A driver process. ``started`` tells a reused pid from the process that once had it."""

    host: str
    pid: int
    started: float
    token: str  # random per driver object

    @property
    def key(self) -> str:
        """Text that names this driver; a lease owner of ``key`` or ``key/...`` belongs to it."""
        return f"{self.host}:{self.pid}:{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentRecord:
    id: int
    fingerprint: str  # of the description
    description: Json
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """``settings_fingerprint`` covers the settings and the seed, not the budget: more budget
    resumes.
    """

    id: int
    uuid: str
    deployment: DeploymentRecord
    state: RunState
    stage: str  # free text of the driver: "baseline", "explore", ...
    settings: Json
    settings_fingerprint: str
    seed: int
    budget: Budget
    verdict: Json | None
    created_at: float
    updated_at: float
    resumed: bool = False  # only set by open_run: True = it existed before this call
    owner: Owner | None = None
    owner_expires_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrial:
    """A configuration to measure. One run measures the same (config, stage, rung) once.

    ``budgeted`` False leaves it out of the budget's count (baseline, incumbent, confirmation).
    """

    config: Json
    stage: str = "explore"
    rung: int = 0
    proposer: str = ""
    why: str = ""
    optuna_number: int | None = None
    budgeted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """``number`` counts from 0 within the run without holes. ``score`` is higher-is-better
    (speed-up over stock) and None unless state is done; ``feasible`` is the gate's word and None
    until finished.
    """

    id: int
    run_id: int
    number: int
    config: Json
    config_hash: str
    stage: str
    rung: int
    state: TrialState
    owner: str | None
    expires_at: float | None
    attempt: int  # leases taken so far; the first lease makes it 1
    proposer: str
    why: str
    reason: str  # why it failed, was pruned, or is infeasible
    optuna_number: int | None
    budgeted: bool
    score: float | None
    score_low: float | None
    score_high: float | None
    feasible: bool | None
    summary: Json | None  # what the outcome carried beyond these fields
    created_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTrial:
    """Answer of ``add_trials`` for one NewTrial, in order. ``trial`` is the new one, or the one
    that it repeats, or None when the run's trial budget is used up.
    """

    status: Literal["added", "repeat", "over_budget"]
    trial: TrialRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTiming:
    """One timed unit: fields as in the engine's UnitTiming. Order of measuring = order in the
    outcome.
    """

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
class StoredOutput:
    """One output and its verdict: fields as in the engine's OutputRecord."""

    config: str
    request_id: str
    token_ids: tuple[int, ...]
    stop_reason: str
    judgement: str  # exact | tie | divergent | distribution
    num_ties: int = 0
    position: int | None = None
    emitted: int | None = None
    expected: int | None = None
    margin: float | None = None
    detail: str = ""
    accepted_by_position: tuple[int, ...] = ()
    drafted_by_position: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """How a trial ended. A done outcome whose score is not a finite number is stored as failed,
    with the score in its reason. ``feasible`` must be True for the trial ever to be ranked.
    """

    state: FinalTrialState
    reason: str = ""
    score: float | None = None
    score_low: float | None = None
    score_high: float | None = None
    feasible: bool = False
    summary: Json = field(default_factory=dict)
    timings: tuple[StoredTiming, ...] = ()
    outputs: tuple[StoredOutput, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCounts:
    """Trials of a run by state, budgeted ones only. A trial counts once whatever its attempts were;
    failed and pruned trials count like done ones.
    """

    queued: int = 0
    leased: int = 0
    done: int = 0
    failed: int = 0
    pruned: int = 0

    @property
    def finished(self) -> int:
        return self.done + self.failed + self.pruned

    @property
    def open(self) -> int:
        return self.queued + self.leased

    def remaining(self, budget: Budget) -> int | None:
        """Trials that may still be added under ``budget``; None without a trial limit."""
        if budget.trials is None:
            return None
        return max(0, budget.trials - self.finished - self.open)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReference:
    """Stock's output for one request of the workload."""

    request_id: str
    token_ids: tuple[int, ...]
    stop_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRecord:
    """A bundle on disk. ``checksum`` is the sha256 of its manifest.json."""

    path: str
    checksum: str
    deployment_fingerprint: str
    created_at: float
