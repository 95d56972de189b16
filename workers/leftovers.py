"""What a killed driver may leave running, and how the next start removes it.

Every process of a local cluster inherits a random token in its environment; a record file, written
before the cluster starts, keeps the token, the cluster's folder and the driver's identity. A driver
that died without closing (``kill -9``) is recognised by its record: its process is gone.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

TOKEN_VARIABLE = "DRAFTSMITH_CLUSTER"
_PREFIX = "ray-"
_KILL_WAIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """One local cluster. ``driver_started`` guards against a process id that was given anew,
    ``host`` against records of another machine in a shared folder.
    """

    token: str
    folder: str
    driver_pid: int
    driver_started: float
    host: str

    def driver_lives(self) -> bool:
        try:
            process = psutil.Process(self.driver_pid)
            return is_running(process) and process.create_time() == self.driver_started
        except psutil.Error:
            return False


def new_record(folder: Path) -> ClusterRecord:
    """A record of a cluster that this process is about to start in ``folder``."""
    return ClusterRecord(
        token=secrets.token_hex(16),
        folder=str(folder),
        driver_pid=os.getpid(),
        driver_started=psutil.Process().create_time(),
        host=platform.node(),
    )


def write_record(record_dir: Path, record: ClusterRecord) -> None:
    record_dir.mkdir(parents=True, exist_ok=True)
    path = _path(record_dir, record)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(record)))
    partial.replace(path)


def remove_cluster(record_dir: Path, record: ClusterRecord) -> int:
    """Kill what is left of the cluster, remove its folder and its record. Returns the number of
    processes killed.
    """
    victims = cluster_processes(record.token)
    for process in victims:
        _kill(process)
    psutil.wait_procs(victims, timeout=_KILL_WAIT_S)
    shutil.rmtree(record.folder, ignore_errors=True)
    _path(record_dir, record).unlink(missing_ok=True)
    return len(victims)


def clean_leftovers(record_dir: Path) -> int:
    """Remove the clusters of dead drivers recorded in ``record_dir``; those of living ones are left
    alone. Returns the number of processes killed.
    """
    killed = 0
    for path in sorted(record_dir.glob(f"{_PREFIX}*.json")):
        try:
            record = ClusterRecord(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if record.host == platform.node() and not record.driver_lives():
            killed += remove_cluster(record_dir, record)
    return killed


def cluster_processes(token: str) -> list[psutil.Process]:
    """Running processes that carry ``token``, this one excepted."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and is_running(process)
                and process.environ().get(TOKEN_VARIABLE) == token
            ):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def is_running(process: psutil.Process) -> bool:
    """False for processes that ended, also when nobody has collected them yet (zombies)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return


def _path(record_dir: Path, record: ClusterRecord) -> Path:
    return record_dir / f"{_PREFIX}{record.token}.json"
