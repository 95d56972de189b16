"""A job runner for the executors' tests: what it does is written in the job's id."""

from __future__ import annotations

from typing import Any


def make_acting_factory() -> Any:
    """A factory of runners. ``ACT:ARGUMENT`` as a job id: ``sleep:SECONDS`` (stops when told to),
    ``hang:SECONDS`` (does not), ``die:SIGNAL``, ``die-once:FILE``, ``raise:TEXT``; any other job is
    measured. The class is local so that it travels to a worker by value.
    """

    class ActingRunner:
        def __init__(self, worker: str) -> None:
            from draftsmith.workers.measure import make_measurer

            self.worker = worker
            self.real = make_measurer(worker)

        def prepare(self, target: Any) -> None:
            if target.path != "none":
                self.real.prepare(target)

        def run(self, job: Any, *, should_stop: Any) -> Any:
            import os
            import time
            from pathlib import Path

            from draftsmith.engine.job import MeasureResult

            act, _, argument = job.job_id.partition(":")
            begin = time.monotonic()
            if act == "sleep":
                while time.monotonic() - begin < float(argument):
                    if should_stop():
                        return MeasureResult(job_id=job.job_id, status="cancelled", reason="told")
                    time.sleep(0.02)
            elif act == "hang":
                time.sleep(float(argument))
            elif act == "die":
                os.kill(os.getpid(), int(argument))
                time.sleep(60)
            elif act == "die-once":
                if not Path(argument).exists():
                    Path(argument).touch()
                    os.kill(os.getpid(), 9)
                    time.sleep(60)
            elif act == "raise":
                raise RuntimeError(argument)
            elif act == "where":
                import sys

                paths = "|".join(sys.path)
                return MeasureResult(
                    job_id=job.job_id, status="ok", reason=paths, worker=self.worker
                )
            else:
                return self.real.run(job, should_stop=should_stop)
            return MeasureResult(job_id=job.job_id, status="ok", worker=self.worker)

    return ActingRunner
