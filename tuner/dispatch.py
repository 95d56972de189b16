"""Between the store's leases and the executor: one trial is one job, and no result is lost or
doubled.

A trial is leased, its job submitted, its outcome stored in one transaction. While waiting, the
run's claim and the leases are renewed, so a second driver stays out and takes over only from a dead
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftsmith.engine.job import MeasureJob, MeasureResult
from draftsmith.store.records import MAX_ATTEMPTS, Owner, TrialOutcome, TrialRecord
from draftsmith.store.repository import Repository
from draftsmith.tuner.executor import Executor

LEASE_S = 120.0
HEARTBEAT_S = 15.0
CANCEL_GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that ended, with the trial that it measured and the seconds it took the driver."""

    trial: TrialRecord
    result: MeasureResult
    seconds: float = 0.0


class Dispatcher:
    """All calls come from the driver's thread. ``on_beat`` runs with every heartbeat."""

    def __init__(
        self,
        repository: Repository,
        executor: Executor,
        run_id: int,
        owner: Owner,
        clock: Callable[[], float],
        on_beat: Callable[[], None],
    ) -> None:
        self._repository = repository
        self._executor = executor
        self._run_id = run_id
        self._owner = owner
        self._clock = clock
        self._on_beat = on_beat
        self._running: dict[str, TrialRecord] = {}
        self._started: dict[str, float] = {}
        self._last_beat = clock()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_idle(self) -> bool:
        """A worker waits for a job."""
        return len(self._running) < self._executor.num_workers

    def lease(self, stage: str, *, max_attempts: int | None = MAX_ATTEMPTS) -> TrialRecord | None:
        """The next queued trial of ``stage``, now ours; None for ``max_attempts`` gives none up."""
        return self._repository.lease(
            self._run_id, self._owner.key, LEASE_S, stage=stage, max_attempts=max_attempts
        )

    def start(self, trial: TrialRecord, job: MeasureJob) -> None:
        self._running[job.job_id] = trial
        self._started[job.job_id] = self._clock()
        self._executor.submit(job)

    def wait(self, timeout_s: float) -> Finished | None:
        """The next job that ends, or None after ``timeout_s``; unknown answers are dropped."""
        deadline = self._clock() + timeout_s
        while self._running:
            left = deadline - self._clock()
            result = self._executor.next_result(max(0.0, min(HEARTBEAT_S, left)))
            self._beat()
            trial = self._running.pop(result.job_id, None) if result else None
            if result is not None and trial is not None:
                seconds = self._clock() - self._started.pop(result.job_id)
                return Finished(trial, result, seconds)
            if result is None and self._clock() >= deadline:
                return None
        return None

    def finish(self, trial: TrialRecord, outcome: TrialOutcome) -> bool:
        """Store how a leased trial ended; False when the lease was lost, and the result with it."""
        return self._repository.finish(trial.id, self._owner.key, outcome)

    def give_back(self, trial: TrialRecord) -> None:
        """Queue a leased trial again, its attempt not counted."""
        self._repository.requeue(trial.id, self._owner.key)

    def cancel(self) -> list[Finished]:
        """Stop every running job; the results that arrive, those of jobs that ended first among
        them.
        """
        if not self._running:
            return []
        self._executor.cancel_all()
        ended: list[Finished] = []
        deadline = self._clock() + CANCEL_GRACE_S
        while self._running and (finished := self.wait(deadline - self._clock())) is not None:
            ended.append(finished)
        for job_id, trial in self._running.items():
            silent = MeasureResult(
                job_id=job_id, status="cancelled", reason="no answer after the cancellation"
            )
            ended.append(Finished(trial, silent))
        self._running.clear()
        return ended

    def _beat(self) -> None:
        if self._clock() - self._last_beat < HEARTBEAT_S:
            return
        self._last_beat = self._clock()
        self._repository.claim_run(self._run_id, self._owner, LEASE_S)
        for trial in self._running.values():
            self._repository.renew(trial.id, self._owner.key, LEASE_S)
        self._on_beat()
