"""The real ``draftsmith`` command in a folder of its own, watched from outside: its processes by
their cluster's token, its store by plain SQL.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil
from tinymodels import save_tiny

from draftsmith.workers.leftovers import cluster_processes

Kind = Literal["driver", "worker", "raylet"]
FINISHED = ("done", "failed", "pruned")
POLL_S = 0.1
PATIENCE_S = 600.0  # for any one thing to happen, on a busy machine
WORDS = ("alpha", "beta", "gamma", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet")


class BrokenPromiseError(AssertionError):
    """A kill cost more than the trial that it hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Every finished trial with all its rows, and where things stand. ``lost_leases`` counts leases
    beyond each trial's first; ``runs`` maps a uuid to state, stage and the driver's process id.
    """

    finished: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    repeats: tuple[Any, ...] = ()
    lost_leases: int = 0
    failed: tuple[str, ...] = ()
    in_flight: str = ""
    runs: dict[str, tuple[str, str, int | None]] = field(default_factory=dict)


class Scene:
    """A tiny target, its prompts, a store and the environment of the commands."""

    def __init__(self, folder: Path, *, num_prompts: int = 24, max_tokens: int = 64) -> None:
        folder = folder.resolve()  # its state folder goes into XDG_STATE_HOME: absolute or ignored
        self.folder = folder
        self.store = folder / "store.db"
        self.num_starts = 0
        self._max_tokens = max_tokens
        self._folders: dict[str, Path] = {}  # of every cluster seen, by token
        self._drivers: list[Driver] = []
        folder.mkdir(parents=True, exist_ok=True)
        save_tiny(folder / "tiny", num_layers=4, hidden=64)
        rng = random.Random(0)
        rows = [
            {"prompt": " ".join(rng.choices(WORDS, k=8)), "category": "ab"[index % 2]}
            for index in range(num_prompts)
        ]
        (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def tune_arguments(self, *, seed: int = 0, max_trials: int = 3) -> list[str]:
        return [
            *("tune", "--target", "tiny", "--workload", "prompts.jsonl", "--dtype", "float32"),
            *("--threads", "1", "--max-tokens", str(self._max_tokens), "--ray-address", "local"),
            *("--budget", "30m", "--max-trials", str(max_trials), "--seed", str(seed)),
            *("--store", "store.db", "--out", "out", "--json"),
        ]

    def start(self, arguments: Sequence[str]) -> Driver:
        """The command as the head of a process group of its own, as a terminal starts it."""
        self.num_starts += 1
        log = self.folder / f"command-{self.num_starts:02}"
        with open(log.with_suffix(".out"), "w") as out, open(log.with_suffix(".err"), "w") as err:
            process = subprocess.Popen(
                [Path(sys.executable).with_name("draftsmith"), *arguments],
                cwd=self.folder,
                env={
                    **os.environ,
                    "XDG_STATE_HOME": str(self.folder / "state"),
                    "HF_HUB_OFFLINE": "1",
                    "OMP_NUM_THREADS": "1",
                },
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self._drivers.append(Driver(self, process, log))
        return self._drivers[-1]

    def clusters(self) -> dict[str, int]:
        """Token of each cluster on record -> process id of its driver."""
        found = {}
        for path in (self.folder / "state" / "draftsmith" / "clusters").glob("ray-*.json"):
            try:
                record = json.loads(path.read_text())
            except (OSError, ValueError):  # removed meanwhile
                continue
            found[record["token"]] = record["driver_pid"]
            self._folders[record["token"]] = Path(record["folder"])
        return found

    def leftovers(self) -> list[str]:
        """Names of what is left of the clusters seen so far: records, folders, processes."""
        left = list(self.clusters())
        left += [str(folder) for folder in self._folders.values() if folder.exists()]
        return left + [p.name() for token in self._folders for p in cluster_processes(token)]

    def snapshot(self) -> Snapshot:
        """Read the store, and check that SQLite finds it whole."""
        with self._connection() as connection:
            return Snapshot() if connection is None else _read(connection)

    def num_finished(self) -> int:
        """Trials that ended."""
        with self._connection() as connection:
            if connection is None:
                return 0
            [(count,)] = connection.execute(
                f"SELECT COUNT(*) FROM draftsmith_trials WHERE state IN {FINISHED}"
            )
            return int(count)

    def driver_pids(self) -> set[int]:
        """Processes that have claimed a run."""
        with self._connection() as connection:
            if connection is None:
                return set()
            rows = connection.execute("SELECT owner FROM draftsmith_runs WHERE owner IS NOT NULL")
            return {json.loads(owner)["pid"] for (owner,) in rows}

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection | None]:
        """The store by plain SQL; None before it has its tables."""
        if not self.store.exists():
            yield None
            return
        connection = sqlite3.connect(f"file:{self.store}?mode=rw", uri=True, timeout=60.0)
        try:
            there = "SELECT 1 FROM sqlite_master WHERE name = 'draftsmith_trials'"
            yield connection if connection.execute(there).fetchall() else None
        finally:
            connection.close()

    def close(self) -> None:
        """End whatever is left after a failed check."""
        for driver in self._drivers:
            if not driver.ended:
                driver.process.kill()
                driver.process.wait()
        self.clusters()
        for token in self._folders:
            for process in cluster_processes(token):
                process.kill()


class Driver:
    """One start of the command."""

    def __init__(self, scene: Scene, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._scene = scene
        self._log = log
        self._began = time.monotonic()

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def stderr(self) -> str:
        return self._log.with_suffix(".err").read_text(errors="replace")

    def document(self) -> dict[str, Any]:
        """What it printed with --json."""
        made: dict[str, Any] = json.loads(self._log.with_suffix(".out").read_text())
        return made

    def holds_run(self) -> bool:
        """Whether it has claimed its run in the store."""
        return self.process.pid in self._scene.driver_pids()

    def victim(self, kind: Kind) -> psutil.Process | None:
        """The process of this kind that belongs to this driver, if it is there now."""
        if kind == "driver":
            return None if self.ended else psutil.Process(self.process.pid)
        pid = self.process.pid
        tokens = [token for token, owner in self._scene.clusters().items() if owner == pid]
        for process in (p for token in tokens for p in cluster_processes(token)):
            try:
                title = process.cmdline()[0]
                working = title.startswith("ray::MeasureActor")  # not Ray's own agents
                if working if kind == "worker" else process.name() == "raylet":
                    return process
            except (psutil.Error, IndexError):
                continue
        return None

    def wait(self, what: Callable[[], bool]) -> bool:
        """Until ``what`` holds; False when the command ended first."""
        limit = time.monotonic() + PATIENCE_S
        while not self.ended:
            if what():
                return True
            if time.monotonic() > limit:
                raise BrokenPromiseError(f"nothing in {PATIENCE_S:.0f} s; it said {self.stderr()}")
            time.sleep(POLL_S)
        return False

    def finish(self) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        return self.process.wait(PATIENCE_S)


def check_kept(before: Snapshot, after: Snapshot, num_driver_kills: int) -> None:
    """Raise BrokenPromiseError unless all that was finished before is there unchanged, nothing is
    stored twice, and no more trials were begun again than drivers died.
    """
    for trial, row in before.finished.items():
        now = after.finished.get(trial)
        if now != row:
            was = "lost" if now is None else f"changed to {now[:16]}"
            raise BrokenPromiseError(f"finished trial {trial} is {was}; it was {row[:16]}")
    if after.repeats:
        raise BrokenPromiseError(f"trials stored twice: {after.repeats}")
    if after.lost_leases > num_driver_kills:
        raise BrokenPromiseError(
            f"{after.lost_leases} trials were begun again after {num_driver_kills} dead drivers"
        )


def _read(connection: sqlite3.Connection) -> Snapshot:
    def query(text: str, *values: object) -> list[tuple[Any, ...]]:
        return connection.execute(text, values).fetchall()

    query("BEGIN")
    trials = query(
        "SELECT number, state, stage, rung, attempt, reason FROM draftsmith_trials ORDER BY id"
    )
    finished = {
        row[0]: (
            *row,
            *query("SELECT * FROM draftsmith_measurements WHERE trial_id = ?", row[0]),
            *query("SELECT * FROM draftsmith_outputs WHERE trial_id = ?", row[0]),
        )
        for row in query(f"SELECT * FROM draftsmith_trials WHERE state IN {FINISHED}")
    }
    same = "run_id, config_hash, stage, rung"
    repeats = query(
        f"SELECT {same}, COUNT(*) FROM draftsmith_trials GROUP BY {same} HAVING COUNT(*) > 1"
    )
    runs = {
        uuid: (state, stage, json.loads(owner)["pid"] if owner else None)
        for uuid, state, stage, owner in query(
            "SELECT uuid, state, stage, owner FROM draftsmith_runs ORDER BY id"
        )
    }
    query("COMMIT")
    for check in ("integrity_check", "foreign_key_check"):
        faults = query(f"PRAGMA {check}")
        if faults not in ([], [("ok",)]):
            raise BrokenPromiseError(f"the store is damaged: {check}: {faults}")
    return Snapshot(
        finished=finished,
        repeats=tuple(repeats),
        lost_leases=sum(
            max(0, attempt - (state != "queued")) for _, state, *_, attempt, _ in trials
        ),
        failed=tuple(
            f"trial {row[0]} ({row[2]}): {row[5]}" for row in trials if row[1] == "failed"
        ),
        in_flight=", ".join(f"{row[2]} {row[3]}" for row in trials if row[1] == "leased"),
        runs=runs,
    )


if __name__ == "__main__":
    Scene(Path(sys.argv[1]))
