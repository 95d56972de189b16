"""A driver to be killed: starts a local cluster and a job that never ends, then waits for it.

Arguments: the folder for records. Prints ``ready`` once the job runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from draftsmith.engine.job import MeasureJob, TargetRef
from draftsmith.engine.types import SpecConfig
from draftsmith.workers.cluster import ClusterConfig
from draftsmith.workers.pool import RayExecutor
from draftsmith.workers.resources import WorkerRequest


def make_factory() -> type:
    class Sleeper:
        def __init__(self, worker: str) -> None:
            pass

        def prepare(self, target: object) -> None:
            pass

        def run(self, job: object, *, should_stop: object) -> None:
            import time

            time.sleep(600)

    return Sleeper


def main(record_dir: Path) -> None:
    with RayExecutor(
        ClusterConfig(record_dir=record_dir, cpus=1), WorkerRequest(), factory=make_factory()
    ) as executor:
        executor.submit(
            MeasureJob(
                job_id="endless",
                target=TargetRef(path="none"),
                requests=(),
                configs={"stock": SpecConfig()},
            )
        )
        executor.worker_pids()
        print("ready", flush=True)
        executor.next_result(None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
