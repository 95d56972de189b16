"""The executor on Ray: one actor a timing domain, deaths and hangs turned into results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from draftsmith.engine.job import JobStatus, MeasureJob, MeasureResult
from draftsmith.workers.actor import (
    CONTROL_GROUP,
    JOB_GROUP,
    MeasureActor,
    RunnerFactory,
    measuring_runner,
)
from draftsmith.workers.cluster import Cluster, ClusterConfig
from draftsmith.workers.errors import WorkerEnvironmentError
from draftsmith.workers.flights import Flight, Pending, Worker, reason_of, with_absolute_paths
from draftsmith.workers.resources import WorkerRequest, plan_workers

POLL_S = 0.2
MAX_ATTEMPTS = 2  # a job whose worker died is tried once more on a fresh one


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """``grace_s`` past a job's own ``timeout_s`` until its worker is killed: the worker notices the
    limit itself between two units and then returns what it has. ``load_s``: limit for starting a
    worker and loading its target. ``cancel_s``: from ``cancel_all`` to the kill.
    ``max_restarts``: restarts of a local cluster that died.
    """

    grace_s: float = 30.0
    load_s: float = 600.0
    cancel_s: float = 10.0
    max_restarts: int = 3


class RayExecutor:
    """``num_workers`` actors on a cluster of its own making. Every submitted job yields one result:

    - the runner's own, whatever its status;
    - ``timeout``: past ``timeout_s`` + grace the actor is killed, the next job gets a fresh one;
    - ``oom``: Ray's memory monitor killed the worker;
    - ``died``: its worker died twice (SIGKILL, segmentation fault, the system's out-of-memory
      killer); the first death is retried once on a fresh worker;
    - ``error``: the job could not be sent or its answer not read;
    - ``cancelled``: after ``cancel_all``.

    A local cluster that dies (raylet or GCS killed) is started again and the jobs in flight are
    sent once more, without counting as a death. When that happened ``max_restarts`` times already,
    or a cluster joined by address is lost, ``next_result`` raises WorkerEnvironmentError: no result
    is made up for jobs that the machine failed.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        workers: WorkerRequest,
        *,
        factory: RunnerFactory = measuring_runner,
        limits: PoolLimits | None = None,
    ) -> None:
        self._factory = factory
        self._limits = limits or PoolLimits()
        self._restarts = 0
        self._queue: deque[Pending] = deque()
        self._done: deque[MeasureResult] = deque()
        self._cluster = Cluster(cluster)
        try:
            self._plan = plan_workers(workers, self._cluster.resources())
        except BaseException:
            self._cluster.close()
            raise
        self._workers = [
            Worker(f"{self._plan.device}{index}") for index in range(self._plan.num_workers)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def num_workers(self) -> int:
        return self._plan.num_workers

    def submit(self, job: MeasureJob) -> None:
        """Queue a job; it goes out at once if a worker is idle."""
        self._queue.append(Pending(with_absolute_paths(job)))
        self._guarded(self._dispatch)

    def next_result(self, timeout_s: float | None = None) -> MeasureResult | None:
        """The next result; None when ``timeout_s`` passed first or nothing is outstanding."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            wait_s = 0.0 if self._done else POLL_S
            if end is not None:
                wait_s = max(0.0, min(wait_s, end - time.monotonic()))
            self._guarded(self._dispatch)
            self._guarded(partial(self._collect, wait_s))
            self._expire()
            if self._done:
                return self._done.popleft()
            if not self._queue and all(worker.flight is None for worker in self._workers):
                return None
            if end is not None and time.monotonic() >= end:
                return None

    def cancel_all(self) -> None:
        """Queued jobs yield ``cancelled`` at once, running ones when they stop or are killed."""
        for pending in self._queue:
            self._finish(pending, "cancelled", "cancelled before it ran")
        self._queue.clear()
        for worker in self._workers:
            if worker.flight is not None and not worker.flight.cancelled:
                worker.flight.cancelled = True
                limit = time.monotonic() + self._limits.cancel_s
                worker.flight.deadline_s = min(worker.flight.deadline_s, limit)
        self._guarded(self._send_cancels)

    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the actors that are up, for status displays and fault injection."""
        import ray

        actors = [worker.actor for worker in self._workers if worker.actor is not None]
        calls = [actor.pid.options(concurrency_group=CONTROL_GROUP).remote() for actor in actors]
        return tuple(ray.get(calls, timeout=self._limits.load_s))

    def close(self) -> None:
        """Stop the workers and the cluster. Jobs still outstanding yield nothing."""
        self._queue.clear()
        self._done.clear()
        for worker in self._workers:
            worker.actor = worker.flight = None
        self._cluster.close()

    def _send_cancels(self) -> None:
        for worker in self._workers:
            if worker.flight is not None:
                cancel = worker.actor.cancel.options(concurrency_group=CONTROL_GROUP)
                cancel.remote(worker.flight.pending.job.job_id)

    def _dispatch(self) -> None:
        for worker in self._workers:
            if worker.flight is not None or not self._queue:
                continue
            if worker.actor is None:
                worker.actor = self._start_actor(worker.name)
            pending = self._queue.popleft()
            actor = worker.actor
            worker.flight = Flight(
                pending,
                loading=actor.prepare.options(concurrency_group=JOB_GROUP).remote(
                    pending.job.target
                ),
                running=actor.run.options(concurrency_group=JOB_GROUP).remote(pending.job),
                deadline_s=time.monotonic() + self._limits.load_s,
            )

    def _start_actor(self, name: str) -> Any:
        import ray

        plan = self._plan
        options = {
            "num_cpus": plan.cpus_per_worker,
            "num_gpus": plan.gpus_per_worker,
            "resources": {plan.timing_resource: 1.0},
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": {JOB_GROUP: 1, CONTROL_GROUP: 1},
        }
        return ray.remote(**options)(MeasureActor).remote(self._factory, name)

    def _collect(self, wait_s: float) -> None:
        """Wait for what is in flight and turn answers and deaths into results or retries."""
        import ray

        waiting = {}
        for worker in self._workers:
            if worker.flight is not None:
                waiting[worker.flight.running] = worker
                if not worker.flight.loaded:
                    waiting[worker.flight.loading] = worker
        if not waiting:
            return
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=wait_s)
        for ref in ready:
            worker = waiting[ref]
            if worker.flight is not None:
                self._take(worker, worker.flight, ref)

    def _take(self, worker: Worker, flight: Flight, ref: Any) -> None:
        import ray
        from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayError

        try:
            answer = ray.get(ref)
        except OutOfMemoryError as error:
            self._drop_actor(worker)
            self._finish(flight.pending, "oom", f"out of memory, killed by Ray: {reason_of(error)}")
        except (ActorDiedError, ActorUnavailableError) as error:
            self._cluster_or_raise()
            self._drop_actor(worker)
            self._retry_or_report(flight, reason_of(error))
        except RayError as error:
            self._cluster_or_raise()
            self._drop_actor(worker)
            self._finish(flight.pending, "error", reason_of(error))
        else:
            if ref == flight.running:
                worker.flight = None
                self._done.append(answer)
            else:
                flight.loaded = True
                if not flight.cancelled:
                    limit_s = flight.pending.job.timeout_s + self._limits.grace_s
                    flight.deadline_s = time.monotonic() + limit_s

    def _retry_or_report(self, flight: Flight, reason: str) -> None:
        pending = flight.pending
        pending.attempts += 1
        if flight.cancelled:
            self._finish(pending, "cancelled", "cancelled; its worker died")
        elif pending.attempts < MAX_ATTEMPTS:
            self._queue.appendleft(pending)
        else:
            self._finish(
                pending,
                "died",
                f"its worker died {pending.attempts} times, last: {reason}",
            )

    def _expire(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            flight = worker.flight
            if flight is None or now < flight.deadline_s:
                continue
            self._drop_actor(worker)
            job = flight.pending.job
            if flight.cancelled:
                self._finish(flight.pending, "cancelled", "cancelled; its worker was killed")
            elif flight.loaded:
                self._finish(
                    flight.pending,
                    "timeout",
                    f"no answer {self._limits.grace_s:g} s after its limit of {job.timeout_s:g} s;"
                    " its worker was killed",
                )
            else:
                self._finish(
                    flight.pending,
                    "timeout",
                    f"no worker had loaded {job.target.path} after {self._limits.load_s:g} s",
                )

    def _drop_actor(self, worker: Worker) -> None:
        import ray

        with suppress(Exception):  # it may be dead already
            ray.kill(worker.actor)
        worker.actor = worker.flight = None

    def _finish(self, pending: Pending, status: JobStatus, reason: str) -> None:
        self._done.append(MeasureResult(job_id=pending.job.job_id, status=status, reason=reason))

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do ``step``; if the cluster died before or meanwhile, restart it, or raise if that cannot
        be done.
        """
        from ray.exceptions import RayError

        try:
            self._cluster_or_raise()
            step()
        except _ClusterLostError:
            self._recover()
        except (RayError, ConnectionError, RuntimeError) as error:
            if self._cluster.is_local and self._cluster.alive():
                raise
            self._recover(error)

    def _cluster_or_raise(self) -> None:
        if not self._cluster.alive():
            raise _ClusterLostError

    def _recover(self, error: Exception | None = None) -> None:
        reason = reason_of(error) if error else "its raylet or GCS ended"
        if not self._cluster.is_local:
            raise WorkerEnvironmentError(f"the Ray cluster is lost: {reason}") from error
        if self._restarts >= self._limits.max_restarts:
            raise WorkerEnvironmentError(
                f"the local Ray cluster died {self._restarts + 1} times ({reason}); free memory, or"
                " run in this process without Ray"
            ) from error
        self._restarts += 1
        for worker in reversed(self._workers):
            flight = worker.flight
            worker.actor = worker.flight = None
            if flight is None:
                continue
            if flight.cancelled:
                self._finish(flight.pending, "cancelled", "cancelled; the cluster died")
            else:
                self._queue.appendleft(flight.pending)
        self._cluster.restart()


class _ClusterLostError(Exception):
    """The local cluster's processes ended."""
