"""Several processes at one store, and processes that are killed while they write."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from draftsmith.store.migrations.upgrade import open_database
from draftsmith.store.repository import Repository
from tests.store import contender

SCRIPT = Path(contender.__file__)


class Contenders:
    """Processes that begin together; all are ended on exit."""

    def __init__(self, mode: str, url: str, number: int, count: int) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), mode, url, str(number), str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._parent.stdout is not None
        first = self._parent.stdout.readline()
        assert first, self._parent.communicate()[1]
        self._pids: list[int] = json.loads(first)

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self.kill()
        self._parent.communicate()

    def running(self) -> bool:
        return self._parent.poll() is None

    def kill(self) -> None:
        """kill -9 all of them; returns when they are gone."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        self._parent.wait()

    def results(self) -> list[dict[str, object]]:
        out, err = self._parent.communicate(timeout=280)
        assert self._parent.returncode == 0, err
        assert "locked" not in err
        return [json.loads(line) for line in out.splitlines()]


def test_b35_eight_writers_and_a_reader_lose_nothing(url: str) -> None:
    """B35: 8 processes x 50 tiny trials (10 on a server, whose locks queue fairly); none lost, no
    number twice, nobody told "locked".
    """
    num_each = 50 if url.startswith("sqlite") else 10
    with closing(open_database(url)) as database:
        repository = Repository(database)
        run = repository.open_run({}, {})
        with Contenders("work", url, 8, num_each) as contenders:
            seen = [0]
            while contenders.running():
                seen.append(repository.counts(run.id).done)
                time.sleep(0.05)
            answers = contenders.results()
        trials = repository.trials(run.id)
        assert [trial.number for trial in trials] == list(range(8 * num_each))
        assert {trial.state for trial in trials} == {"done"}
        finished = [number for answer in answers for number in answer["finished"]]  # type: ignore[attr-defined]
        assert sorted(finished) == list(range(8 * num_each)), (
            "each trial finished by exactly one process"
        )
        assert seen == sorted(seen)
        assert len(repository.outputs(trials[-1].id)) == contender.NUM_OUTPUTS


def test_b12_four_processes_begin_one_run_together(url: str) -> None:
    """The schema is made once, one run is opened, one process drives it, and B12: four processes
    that want 8 trials each get exactly the budget of 10.
    """
    with Contenders("drive", url, 4, 8) as contenders:
        answers = contenders.results()
    assert len({answer["run"] for answer in answers}) == 1
    assert sum(bool(answer["claimed"]) for answer in answers) == 1
    assert sum(int(str(answer["added"])) for answer in answers) == 10
    with closing(open_database(url)) as database:
        (run,) = Repository(database).runs()
        assert [t.number for t in Repository(database).trials(run.id)] == list(range(10))


@pytest.mark.parametrize("delay_s", [0.05, 0.2, 0.45])
def test_killed_writers_leave_an_intact_store(tmp_path: Path, delay_s: float) -> None:
    """kill -9 in the middle of writing: the file is sound and every outcome is whole or absent."""
    file = tmp_path / "store.db"
    with closing(open_database(file)) as database:
        repository = Repository(database)
        run = repository.open_run({}, {})
        with Contenders("work", str(file), 2, 100_000) as contenders:
            while repository.counts(run.id).done == 0:
                time.sleep(0.01)
            time.sleep(delay_s)
            contenders.kill()
    with closing(sqlite3.connect(file)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    with closing(open_database(file)) as database:
        repository = Repository(database)
        trials = repository.trials(run.id)
        assert [trial.number for trial in trials] == list(range(len(trials)))
        for trial in trials:
            whole = contender.NUM_OUTPUTS if trial.state == "done" else 0
            assert len(repository.outputs(trial.id)) == whole
        open_trials = [trial for trial in trials if trial.state != "done"]
        for _ in open_trials:
            later = Repository(database, lambda: time.time() + 3600)
            trial = later.lease(run.id, "next", 60)
            assert trial is not None and later.finish(trial.id, "next", contender.outcome(1.0))
        assert {trial.state for trial in repository.trials(run.id)} == {"done"}
