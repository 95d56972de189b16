"""Ray: a small local cluster that leaves nothing behind, or a connection to one by address."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil

from draftsmith.workers.errors import WorkerEnvironmentError
from draftsmith.workers.leftovers import (
    TOKEN_VARIABLE,
    ClusterRecord,
    clean_leftovers,
    cluster_processes,
    is_running,
    new_record,
    remove_cluster,
    write_record,
)
from draftsmith.workers.resources import Resources, available_cpus, timing_resource

OBJECT_STORE_BYTES = 80 * 2**20  # Ray takes no less than 75 MiB; jobs and results are kilobytes
LOG_BYTES = 4 * 2**20  # a log file, with one older generation kept
MAX_FOLDER_CHARS = 38  # Ray's sockets go 66 characters deeper, the system's limit is 107
START_ATTEMPTS = 2  # of a local cluster: Ray gives up after 30 s, too few on a busy machine
PROBE_S = 10.0  # for a connection to a cluster's address
DAEMONS = ("raylet", "gcs_server")

# Read by Ray when it is imported or starts processes; in force only meanwhile.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # a local cluster listens on loopback only
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # keep the cluster's messages off the driver's stdout
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_ROTATION_MAX_BYTES": str(LOG_BYTES),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    "RAY_prestart_worker_first_driver": "0",  # no idle workers beside the timed one
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "SPT_NOENV": "1",  # process titles must not overwrite the token in the environment
    "RAY_worker_niceness": "0",  # Ray's default of 15 would time the worker at the lowest priority
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """``record_dir`` keeps the records of local clusters (``leftovers.py``), one folder for all of
    a user's runs. ``address`` None starts a local cluster. ``cpus`` None: what affinity and cgroup
    allow. ``cpu_domains``: memory domains whose workers do not disturb each other. ``shm``: where
    the object store goes if it fits there, else into the cluster's own folder. ``environment``: of
    the workers on a cluster joined by address; those of a local one inherit this process's.
    """

    record_dir: Path
    address: str | None = None
    cpus: int | None = None
    gpus: int = 0
    cpu_domains: int = 1
    shm: Path = Path("/dev/shm")
    environment: Mapping[str, str] = field(default_factory=dict)


class Cluster:
    """One connection to Ray, started at once; a context manager, closed also at exit.

    It must be made on the main thread: the kernel kills a local cluster's processes when the thread
    that started them ends, which is what stops them after a ``kill -9`` of the driver.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._record: ClusterRecord | None = None
        self._daemons: list[psutil.Process] = []
        self._open = False
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def is_local(self) -> bool:
        return self._config.address is None

    def resources(self) -> Resources:
        """What the whole cluster offers, taken or not."""
        import ray

        totals: dict[str, float] = ray.cluster_resources()
        return Resources(
            cpus=totals.get("CPU", 0.0),
            gpus=min(totals.get("GPU", 0.0), totals.get(timing_resource("gpu"), 0.0)),
            cpu_domains=int(totals.get(timing_resource("cpu"), 0.0)),
        )

    def alive(self) -> bool:
        """Whether a local cluster's raylet and GCS run. A remote one fails in its calls."""
        return self._open and all(is_running(process) for process in self._daemons)

    def restart(self) -> None:
        """Replace a local cluster that died; its actors are lost."""
        self.close()
        self._start()

    def close(self) -> None:
        """Disconnect; end every process of a local cluster. Safe to call twice."""
        if not self._open and self._record is None:
            return
        import ray

        self._open = False
        atexit.unregister(self.close)
        ray.shutdown()
        if signal.getsignal(signal.SIGTERM) is _exit_on_signal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._record is not None:
            remove_cluster(self._config.record_dir, self._record)
            self._record = None
        self._daemons = []

    def _start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise WorkerEnvironmentError(
                "Ray must be started on the main thread; make the executor there"
            )
        local = self._config.address is None
        attempts = START_ATTEMPTS if local else 1
        with _environment(_QUIET | _LOOPBACK if local else _QUIET):
            import ray

            if ray.is_initialized():
                raise WorkerEnvironmentError(
                    "this process is connected to Ray already; call ray.shutdown() first, or run"
                    " draftsmith in its own process"
                )
            while not self._open:
                atexit.register(self.close)
                attempts -= 1
                try:
                    if self._config.address is None:
                        self._start_local(ray)
                    else:
                        self._connect(ray, self._config.address)
                except BaseException as error:
                    self._open = True
                    self.close()
                    if attempts == 0 or not isinstance(error, WorkerEnvironmentError):
                        raise
                else:
                    self._open = True

    def _start_local(self, ray: Any) -> None:
        config = self._config
        clean_leftovers(config.record_dir)
        folder = _short_folder()
        self._record = new_record(folder)
        write_record(config.record_dir, self._record)
        empty = folder / "cwd"
        empty.mkdir()
        small = not _fits(config.shm)
        # Ray puts the driver's working directory on every worker's sys.path: from a checkout's root
        # the workers would import our folders under their bare names.
        with (
            _environment({TOKEN_VARIABLE: self._record.token}),
            _directory(empty),
            _own_sigterm(),
            _translated(f"the local Ray cluster did not start (its logs were in {folder})"),
        ):
            ray.init(
                address="local",
                num_cpus=config.cpus or available_cpus(),
                num_gpus=config.gpus,
                resources={
                    timing_resource("cpu"): float(config.cpu_domains),
                    **({timing_resource("gpu"): float(config.gpus)} if config.gpus else {}),
                },
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=str(folder),
                _plasma_directory=str(folder) if small else None,
            )
        self._daemons = [
            process
            for process in cluster_processes(self._record.token)
            if process.name() in DAEMONS
        ]

    def _connect(self, ray: Any, address: str) -> None:
        folder = Path(tempfile.mkdtemp(prefix="draftsmith-"))
        try:
            with (
                _directory(folder),
                _own_sigterm(),
                _translated(
                    f"no Ray cluster answers at {address}; start one or drop --ray-address"
                ),
            ):
                _probe(address)  # Ray itself waits for minutes
                ray.init(
                    address=address,
                    runtime_env={"env_vars": dict(self._config.environment)},
                    log_to_driver=False,
                    logging_level="ERROR",
                )
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _probe(address: str) -> None:
    """Raise OSError when nothing listens at ``host:port``; other forms (``auto``) are Ray's."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal() and int(port) < 2**16:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S).close()


def _short_folder() -> Path:
    """A fresh folder for a cluster's sockets and logs, short enough for socket paths."""
    for base in (tempfile.gettempdir(), "/tmp"):
        if len(base) + len("/ds-ray-XXXXXXXX") <= MAX_FOLDER_CHARS and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="ds-ray-", dir=base))
    raise WorkerEnvironmentError(
        f"Ray's sockets need a writable folder of at most {MAX_FOLDER_CHARS - 16} characters;"
        f" {tempfile.gettempdir()} is longer: set TMPDIR to a shorter one"
    )


def _fits(shm: Path) -> bool:
    """Whether the object store fits in shared memory. Containers often have 64 MB of it."""
    try:
        return shutil.disk_usage(shm).free > OBJECT_STORE_BYTES * 1.1
    except OSError:
        return False


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _directory(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(before)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Put the program's SIGTERM handler back: Ray replaces it, natively too, by one that aborts.
    Where there was none, SIGTERM exits as Ctrl-C does, so that the cluster is closed on the way.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        handler = _exit_on_signal if before in (signal.SIG_DFL, None) else before
        signal.signal(signal.SIGTERM, handler)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Ray raises bare ones, when its own 30 s are over for instance
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkerEnvironmentError(f"{what}: {first[0]}") from error
