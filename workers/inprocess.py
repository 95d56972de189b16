"""The executor without Ray: one worker, in this process."""

from __future__ import annotations

from collections import deque
from typing import Self

from draftsmith.engine.job import MeasureJob, MeasureResult
from draftsmith.workers.actor import JobRunner


class InProcessExecutor:
    """Runs each job inside ``next_result``, for one device and for debugging.

    Nothing interrupts a job from outside: ``timeout_s`` of the job, and ``cancel_all`` called from
    a signal handler or another thread, take effect between two timed units. ``next_result`` may
    therefore return later than its own ``timeout_s``. A job that hangs or kills the process is not
    survived: that is what the Ray executor is for.
    """

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._queue: deque[MeasureJob] = deque()
        self._done: deque[MeasureResult] = deque()
        self._stop = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def num_workers(self) -> int:
        return 1

    def submit(self, job: MeasureJob) -> None:
        self._queue.append(job)

    def next_result(self, timeout_s: float | None = None) -> MeasureResult | None:
        """The next result, or None when no job is waiting."""
        if not self._done and self._queue:
            self._stop = False
            job = self._queue.popleft()
            try:
                self._done.append(self._runner.run(job, should_stop=lambda: self._stop))
            except BaseException:  # Ctrl-C: the job is still to be done
                self._queue.appendleft(job)
                raise
        return self._done.popleft() if self._done else None

    def cancel_all(self) -> None:
        """Queued jobs yield ``cancelled``; a running one stops at its next check."""
        self._stop = True
        self._done.extend(
            MeasureResult(job_id=job.job_id, status="cancelled", reason="cancelled before it ran")
            for job in self._queue
        )
        self._queue.clear()

    def close(self) -> None:
        self._stop = True
        self._queue.clear()
        self._done.clear()
