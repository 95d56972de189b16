"""What the tuner needs from whatever runs its jobs; workers meet it structurally."""

from __future__ import annotations

from typing import Protocol

from draftsmith.engine.job import MeasureJob, MeasureResult


class Executor(Protocol):
    """Runs measuring jobs on ``num_workers`` timing domains. All calls come from one thread."""

    @property
    def num_workers(self) -> int:
        """Jobs that run at the same time; more may be submitted and wait."""
        ...

    def submit(self, job: MeasureJob) -> None:
        """Start or queue a job. Every submitted job yields exactly one result, come what may."""
        ...

    def next_result(self, timeout_s: float | None) -> MeasureResult | None:
        """The next finished job, or None when ``timeout_s`` passed first."""
        ...

    def cancel_all(self) -> None:
        """Stop running and queued jobs; each yields a result of status ``cancelled``."""
        ...

    def close(self) -> None:
        """Release workers; nothing is left behind."""
        ...
