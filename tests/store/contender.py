"""Run as a script: several processes at one store. Each prints what it saw as one JSON line.

    python contender.py MODE URL NUMBER COUNT

The imports are paid once: the processes are forked before anything is opened. The first line
printed is the list of their ids.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from contextlib import closing
from multiprocessing.synchronize import Barrier

from draftsmith.store.errors import RunBusyError
from draftsmith.store.migrations.upgrade import open_database
from draftsmith.store.owners import this_process
from draftsmith.store.records import Budget, NewTrial, StoredOutput, TrialOutcome
from draftsmith.store.repository import Repository

NUM_OUTPUTS = 5


def outcome(score: float) -> TrialOutcome:
    outputs = tuple(
        StoredOutput(
            config="trial",
            request_id=f"r{number}",
            token_ids=tuple(range(64)),
            stop_reason="length",
            judgement="exact",
        )
        for number in range(NUM_OUTPUTS)
    )
    return TrialOutcome(state="done", score=score, feasible=True, outputs=outputs)


def work(repository: Repository, name: str, count: int, _: Barrier) -> dict[str, object]:
    """``count`` times: add a trial, take whichever is next, finish it."""
    run = repository.runs()[0]
    finished = []
    for number in range(count):
        repository.add_trials(run.id, [NewTrial(config={"by": name, "n": number})])
        trial = repository.lease(run.id, name, 600)
        if trial is not None and repository.finish(trial.id, name, outcome(1.0)):
            finished.append(trial.number)
    return {"finished": finished}


def drive(repository: Repository, name: str, count: int, barrier: Barrier) -> dict[str, object]:
    """Open the same run as everybody, try to claim it, add up to ``count`` of a budget of 10."""
    run = repository.open_run({"target": "tiny"}, {}, budget=Budget(trials=10))
    claimed = True
    try:
        repository.claim_run(run.id, this_process(), 600)
    except RunBusyError:
        claimed = False
    statuses = []
    for number in range(count):
        (answer,) = repository.add_trials(run.id, [NewTrial(config={"by": name, "n": number})])
        statuses.append(answer.status)
    barrier.wait()  # alive until everybody has tried to claim
    return {"run": run.uuid, "claimed": claimed, "added": statuses.count("added")}


def contend(mode: str, url: str, name: str, count: int, barrier: Barrier) -> None:
    barrier.wait()
    with closing(open_database(url, busy_timeout_s=60.0)) as database:
        action = {"work": work, "drive": drive}[mode]
        line = json.dumps(action(Repository(database), name, count, barrier)) + "\n"
        os.write(1, line.encode())  # one write: the pipe is shared, lines must not interleave


def main() -> None:
    mode, url, number, count = sys.argv[1:]
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(int(number))
    processes = [
        fork.Process(target=contend, args=(mode, url, f"p{at}", int(count), barrier))
        for at in range(int(number))
    ]
    for process in processes:
        process.start()
    print(json.dumps([process.pid for process in processes]), flush=True)
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main()
