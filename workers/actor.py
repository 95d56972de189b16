"""The Ray actor: a thin wrapper round a job runner, one a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from draftsmith.engine.job import MeasureJob, MeasureResult, TargetRef

JOB_GROUP = "job"  # one thread: loading and jobs, in order
CONTROL_GROUP = "control"  # one thread: answers while a job runs


class JobRunner(Protocol):
    """What an actor or the in-process executor wraps; ``measure.Measurer`` is the real one."""

    def prepare(self, target: TargetRef) -> None:
        """Load the target ahead of its first job. May raise; the job will then say why."""
        ...

    def run(self, job: MeasureJob, *, should_stop: Callable[[], bool]) -> MeasureResult:
        """Carry out a job; never raises for what the job asks."""
        ...


RunnerFactory = Callable[[str], JobRunner]


class MeasureActor:
    """Holds one runner, made from ``factory`` with the worker's name. The target is loaded here
    from its path: weights never pass through Ray.
    """

    def __init__(self, factory: RunnerFactory, worker: str) -> None:
        self._runner = factory(worker)
        self._cancelled: set[str] = set()

    def pid(self) -> int:
        return os.getpid()

    def prepare(self, target: TargetRef) -> None:
        with suppress(Exception):
            self._runner.prepare(target)

    def run(self, job: MeasureJob) -> MeasureResult:
        try:
            return self._runner.run(job, should_stop=lambda: job.job_id in self._cancelled)
        finally:
            self._cancelled.discard(job.job_id)

    def cancel(self, job_id: str) -> None:
        """Ask the running job to stop at its next check."""
        self._cancelled.add(job_id)


def measuring_runner(worker: str) -> JobRunner:
    """The real runner, imported where it runs: a driver that only sends jobs loads no models."""
    from draftsmith.workers.measure import make_measurer

    return make_measurer(worker)
