"""One measuring job on one device, without Ray: warm up, time interleaved, judge every output."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draftsmith.engine.errors import EngineError, EngineInputError
from draftsmith.engine.job import STOCK, JobStatus, MeasureJob, MeasureResult, TargetRef
from draftsmith.engine.model.loading import LoadedTarget, load_target
from draftsmith.engine.model.locating import resolve_device
from draftsmith.engine.model.model import Model
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.timing import Clock, MonotonicClock
from draftsmith.kernels.notice import slower_note
from draftsmith.workers.errors import WorkerError, WorkerInputError
from draftsmith.workers.judging import Judge
from draftsmith.workers.memory import free_memory, is_out_of_memory
from draftsmith.workers.timed_run import Progress, Rival, TimedRun

RESIDENT_TARGETS = 1
RESIDENT_DRAFT_MODELS = 2

Loader = Callable[[TargetRef], LoadedTarget]


class Ended(NamedTuple):
    status: JobStatus
    reason: str


class _StoppedError(Exception):
    def __init__(self, status: JobStatus, reason: str) -> None:
        super().__init__(reason)
        self.ended = Ended(status, reason)


@dataclass(slots=True)
class _Resident:
    loaded: LoadedTarget
    engine: NativeEngine
    clock: Clock


class Measurer:
    """Holds the loaded target between jobs; everything else starts afresh with each job, so that
    no job's result depends on the jobs before it (cases.md B1, B29).

    ``load`` and ``clock`` are replaceable for tests; the clock is else the device's own. ``rivals``
    are other engines that take their turns in every job; they are the caller's to open and close.
    """

    def __init__(
        self,
        worker: str = "",
        *,
        load: Loader = load_target,
        clock: Clock | None = None,
        rivals: Mapping[str, Rival] | None = None,
    ) -> None:
        self._worker = worker
        self._load = load
        self._clock = clock
        self._rivals = rivals
        self._residents: OrderedDict[TargetRef, _Resident] = OrderedDict()
        self._draft_models: OrderedDict[TargetRef, Model] = OrderedDict()

    def prepare(self, target: TargetRef) -> None:
        """Load the target if it is not resident. Raises what loading raises."""
        self._resident(target)

    def run(
        self, job: MeasureJob, *, should_stop: Callable[[], bool] = lambda: False
    ) -> MeasureResult:
        """Carry out a job. Never raises for what the job asks: a bad configuration or target is
        status ``error`` and ``refused``, memory that runs out ``oom`` (all caches are then freed).

        ``should_stop`` and ``job.timeout_s`` are looked at before every unit and every judgement;
        a job cut short keeps its complete units and the outputs that equal stock's.
        """
        progress = Progress()
        refused = False
        began_s = (self._clock or MonotonicClock()).now()
        try:
            ended = self._attempt(job, progress, should_stop)
        except (EngineError, WorkerError) as error:
            ended = Ended("error", str(error))
            refused = isinstance(error, EngineInputError | WorkerInputError)
        except Exception as error:  # a fault of ours or of a library must not end the search
            if is_out_of_memory(error):
                ended = Ended("oom", f"out of memory: {_first_line(error)}")
            else:
                ended = Ended("error", f"{type(error).__name__}: {_first_line(error)}")
        if ended.status == "oom":
            self.release()
        found = progress.findings
        return MeasureResult(
            job_id=job.job_id,
            status=ended.status,
            reason=ended.reason,
            refused=refused,
            timings=tuple(progress.timings),
            outputs=tuple(found.records),
            rival_turns=tuple(progress.rival_turns),
            margin_noise=found.margin_noise,
            stock_ties=found.stock_ties,
            stock_positions=found.stock_positions,
            peak_memory_bytes=dict(progress.peak_bytes),
            stopped_early=progress.stopped_early,
            worker=self._worker,
            kernel_note=_kernel_note(job.target) if ended.status == "ok" else "",
            wall_s=(self._clock or MonotonicClock()).now() - began_s,
        )

    def release(self) -> None:
        """Free every target, draft model and cache."""
        self._residents.clear()
        self._draft_models.clear()
        free_memory()

    def _attempt(
        self, job: MeasureJob, progress: Progress, should_stop: Callable[[], bool]
    ) -> Ended:
        _check_job(job)
        with _num_threads(job.target.num_threads):
            resident = self._resident(job.target)
            limit_s = resident.clock.now() + job.timeout_s

            def check() -> None:
                if should_stop():
                    raise _StoppedError("cancelled", "cancelled while it ran")
                if resident.clock.now() >= limit_s:
                    raise _StoppedError("timeout", f"ran for its limit of {job.timeout_s:g} s")

            tokenizer = resident.loaded.tokenizer
            judge = Judge(job, resident.engine, tokenizer, check)
            progress.findings = judge.findings
            resident.engine.forget()
            try:
                TimedRun(job, resident.engine, progress, check, self._rivals).execute()
                judge.judge_all(progress.outputs)
            except _StoppedError as stop:
                judge.keep_exact(progress.outputs)
                return stop.ended
            except BaseException:
                judge.keep_exact(progress.outputs)
                raise
            finally:
                resident.engine.forget()
        return Ended("ok", "")

    def _resident(self, target: TargetRef) -> _Resident:
        if target in self._residents:
            self._residents.move_to_end(target)
            return self._residents[target]
        while len(self._residents) >= RESIDENT_TARGETS:
            self._residents.popitem(last=False)
            self._draft_models.clear()
            free_memory()
        loaded = self._load(target)
        clock = self._clock or MonotonicClock(target.device)

        def load_draft_model(path: str) -> Model:
            return self._draft_model(target.draft(path))

        engine = NativeEngine(
            loaded.model,
            tokenizer=loaded.tokenizer,
            clock=clock,
            load_draft_model=load_draft_model,
        )
        self._residents[target] = _Resident(loaded, engine, clock)
        return self._residents[target]

    def _draft_model(self, ref: TargetRef) -> Model:
        if ref not in self._draft_models:
            while len(self._draft_models) >= RESIDENT_DRAFT_MODELS:
                self._draft_models.popitem(last=False)
            self._draft_models[ref] = self._load(ref).model
        self._draft_models.move_to_end(ref)
        return self._draft_models[ref]


def make_measurer(worker: str, rivals: Mapping[str, Rival] | None = None) -> Measurer:
    """The default runner of the executors."""
    return Measurer(worker, rivals=rivals)


def _check_job(job: MeasureJob) -> None:
    if STOCK not in job.configs or job.configs[STOCK].drafter != "none":
        raise WorkerInputError(f"job {job.job_id} lacks the configuration {STOCK!r} (drafter none)")
    if not job.requests:
        raise WorkerInputError(f"job {job.job_id} has no requests")
    seen: set[str] = set()
    for request in job.requests:
        if request.request_id in seen:
            raise WorkerInputError(
                f"job {job.job_id} has request id {request.request_id!r} twice; ids must be unique"
            )
        seen.add(request.request_id)
    for name in ("concurrency", "repeats"):
        if getattr(job, name) < 1:
            raise WorkerInputError(f"{name} is {getattr(job, name)}; give 1 or more")


def _kernel_note(target: TargetRef) -> str:
    return slower_note(resolve_device(target.device))


@contextmanager
def _num_threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
