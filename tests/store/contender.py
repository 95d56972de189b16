"""Run as a script: one of several processes at one store. Prints what it saw as one JSON line.

    python contender.py MODE URL NAME GO COUNT

It imports everything, prints "ready", waits for the file GO, and begins.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

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


def work(repository: Repository, name: str, count: int) -> dict[str, object]:
    """``count`` times: add a trial, take whichever is next, finish it."""
    run = repository.runs()[0]
    finished = []
    for number in range(count):
        repository.add_trials(run.id, [NewTrial(config={"by": name, "n": number})])
        trial = repository.lease(run.id, name, 600)
        if trial is not None and repository.finish(trial.id, name, outcome(1.0)):
            finished.append(trial.number)
    return {"finished": finished}


def drive(repository: Repository, name: str, count: int) -> dict[str, object]:
    """Open the same run as everybody, try to claim it, add up to ``count`` trials of a budget of 10."""
    run = repository.open_run({"target": "tiny"}, {}, budget=Budget(trials=10))
    owner, claimed = this_process(), True
    try:
        repository.claim_run(run.id, owner, 600)
    except RunBusyError:
        claimed = False
    statuses = []
    for number in range(count):
        (answer,) = repository.add_trials(run.id, [NewTrial(config={"by": name, "n": number})])
        statuses.append(answer.status)
    time.sleep(0.5)  # alive until everybody has tried to claim
    return {"run": run.uuid, "claimed": claimed, "added": statuses.count("added")}


def main() -> None:
    mode, url, name, go, count = sys.argv[1:]
    print("ready", flush=True)
    while not Path(go).exists():
        time.sleep(0.005)
    with closing(open_database(url, busy_timeout_s=60.0)) as database:
        action = {"work": work, "drive": drive}[mode]
        print(json.dumps(action(Repository(database), name, int(count))), flush=True)


if __name__ == "__main__":
    main()
