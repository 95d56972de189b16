"""From what a worker answered to what the store keeps, and back to evidence after a restart."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from draftsmith.engine.job import STOCK, MeasureResult
from draftsmith.store.records import Json, StoredOutput, StoredTiming, TrialOutcome, TrialRecord
from draftsmith.store.repository import Repository
from draftsmith.tuner.evidence import (
    BadMeasurementError,
    Evidence,
    Output,
    StockRecord,
    collect,
)
from draftsmith.tuner.objective import Score

CANDIDATE = "candidate"
INCUMBENT = "incumbent"
KERNEL_NOTE = "kernel_note"  # in a trial's summary
SEARCH_OVER = "the search time was up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One job's evidence about ``name``, or the reason why there is none."""

    evidence: Evidence | None = None
    failure: str = ""
    stopped_early: bool = False


def read_result(
    result: MeasureResult, stock: StockRecord, *, name: str = CANDIDATE, against: str = STOCK
) -> Reading:
    """Evidence of a worker's answer; every status but ok, every value that is no finite time, and a
    stock that did not repeat its own output make the trial a failed one.
    """
    if result.status != "ok":
        reason = f": {result.reason}" if result.reason else ""
        return Reading(failure=f"{result.status}{reason}")
    unstable = _stock_changed(result.outputs)
    if unstable:
        return Reading(failure=unstable)
    try:
        evidence = collect(
            name,
            result.timings,
            result.outputs,
            stock,
            against=against,
            peak_memory_bytes=result.peak_memory_bytes.get(name),
        )
    except BadMeasurementError as error:
        return Reading(failure=str(error))
    if not evidence.num_outputs:
        return Reading(failure="the worker returned no output of this configuration")
    return Reading(evidence=evidence, stopped_early=result.stopped_early)


def read_stored(
    repository: Repository,
    trial: TrialRecord,
    stock: StockRecord,
    *,
    name: str = CANDIDATE,
    against: str = STOCK,
) -> Evidence:
    """Evidence of a finished trial, from its stored timings and outputs."""
    summary = trial.summary or {}
    return collect(
        name,
        repository.timings(trial.id),
        repository.outputs(trial.id),
        stock,
        against=against,
        peak_memory_bytes=summary.get("peak_memory_bytes", {}).get(name),
    )


def to_outcome(
    result: MeasureResult, *, score: Score | None, failure: str, stopped_early: bool = False
) -> TrialOutcome:
    """What the store keeps of one job. A failed trial keeps its reason only; stock's outputs are
    kept in the baseline alone.
    """
    if failure or score is None:
        return TrialOutcome(
            state="failed", reason=failure or "not scored", summary=_summary(result)
        )
    interval = score.interval
    return TrialOutcome(
        state="pruned" if stopped_early else "done",
        reason=score.reason or ("stopped early: slower than stock" if stopped_early else ""),
        score=interval.ratio if interval else 0.0,
        score_low=interval.low if interval else None,
        score_high=interval.high if interval and math.isfinite(interval.high) else None,
        feasible=score.feasible and not stopped_early,
        summary=_summary(result),
        timings=tuple(StoredTiming(**asdict(timing)) for timing in result.timings),
        outputs=tuple(
            StoredOutput(**asdict(output)) for output in result.outputs if output.config != STOCK
        ),
    )


def baseline_outcome(result: MeasureResult) -> TrialOutcome:
    """What the store keeps of a baseline job: stock's times and outputs, and a speed-up of 1."""
    return TrialOutcome(
        state="done",
        score=1.0,
        feasible=True,
        summary=_summary(result)
        | {
            "margin_noise": result.margin_noise,
            "stock_ties": result.stock_ties,
            "stock_positions": result.stock_positions,
        },
        timings=tuple(StoredTiming(**asdict(timing)) for timing in result.timings),
        outputs=tuple(StoredOutput(**asdict(output)) for output in result.outputs),
    )


def _summary(result: MeasureResult) -> Json:
    return {
        "status": result.status,
        "peak_memory_bytes": dict(result.peak_memory_bytes),
        "stopped_early": result.stopped_early,
        "worker": result.worker,
        KERNEL_NOTE: result.kernel_note,
        "wall_s": result.wall_s,
    }


def _stock_changed(outputs: tuple[Output, ...]) -> str:
    for output in outputs:
        if output.config == STOCK and output.judgement == "divergent":
            return (
                f"stock did not repeat its own output of {output.request_id} "
                f"(position {output.position}): this worker's results cannot be compared"
            )
    return ""
