from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftsmith.workers.cluster import Cluster, ClusterConfig
from draftsmith.workers.errors import WorkerEnvironmentError
from draftsmith.workers.leftovers import (
    TOKEN_VARIABLE,
    clean_leftovers,
    cluster_processes,
    new_record,
    write_record,
)
from draftsmith.workers.pool import RayExecutor

DRIVER = Path(__file__).parents[1] / "support" / "driver.py"
WAIT_S = 60.0


def wait_until_gone(token: str) -> list[str]:
    """Names of the processes of a cluster that are still there after a while."""
    end = time.monotonic() + WAIT_S
    while (left := cluster_processes(token)) and time.monotonic() < end:
        time.sleep(0.2)
    return [process.name() for process in left]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A driver process in its own group with a job running; (process, token, records)."""
    records = tmp_path / "records"
    process = subprocess.Popen(
        [sys.executable, "-P", str(DRIVER), str(records)],
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", (tmp_path / "stderr").read_text()
    (record,) = records.glob("*.json")
    token = json.loads(record.read_text())["token"]
    assert len(cluster_processes(token)) >= 3  # raylet, gcs_server, worker
    yield process, token, records
    process.kill()
    process.wait()
    process.stdout.close()
    clean_leftovers(records)


@pytest.mark.ray
@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_terminated_or_interrupted_driver_leaves_nothing(
    driver: tuple[subprocess.Popen[str], str, Path], signal_: signal.Signals
) -> None:
    process, token, records = driver
    os.killpg(process.pid, signal_)  # as the terminal does for Ctrl-C: the whole group
    process.wait(WAIT_S)
    assert wait_until_gone(token) == []
    assert list(records.iterdir()) == []


@pytest.mark.ray
def test_killed_driver_is_cleaned_up_by_the_next_start(
    driver: tuple[subprocess.Popen[str], str, Path],
) -> None:
    process, token, records = driver
    folder = Path(json.loads(next(records.glob("*.json")).read_text())["folder"])
    assert clean_leftovers(records) == 0  # of a living driver nothing is touched
    assert cluster_processes(token) and folder.exists()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(WAIT_S)
    clean_leftovers(records)
    assert wait_until_gone(token) == []
    assert not folder.exists() and list(records.iterdir()) == []


def test_leftovers_are_found_by_token_and_killed(tmp_path: Path) -> None:
    """A process that ignores its parent's death, of a driver whose id was given anew."""
    record = new_record(tmp_path / "cluster")
    (tmp_path / "cluster").mkdir()
    stale = replace(record, driver_started=record.driver_started - 100.0)
    write_record(tmp_path / "records", stale)
    (tmp_path / "records" / "ray-broken.json").write_text("{")
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, TOKEN_VARIABLE: record.token},
    )
    while not cluster_processes(record.token):
        time.sleep(0.05)
    assert clean_leftovers(tmp_path / "records") == 1
    assert cluster_processes(record.token) == []
    sleeper.wait(WAIT_S)
    assert not (tmp_path / "cluster").exists()


def test_records_of_other_machines_are_left_alone(tmp_path: Path) -> None:
    record = replace(new_record(tmp_path / "cluster"), driver_started=0.0, host="elsewhere")
    write_record(tmp_path, record)
    assert clean_leftovers(tmp_path) == 0
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_cluster_is_started_on_the_main_thread_only(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def start() -> None:
        try:
            Cluster(ClusterConfig(record_dir=tmp_path))
        except WorkerEnvironmentError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert len(errors) == 1 and "main thread" in str(errors[0])


@pytest.mark.ray
def test_a_second_connection_in_one_process_is_refused(
    ray_executor: RayExecutor, tmp_path: Path
) -> None:
    with pytest.raises(WorkerEnvironmentError, match="already"):
        Cluster(ClusterConfig(record_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert ray_executor.next_result(0.0) is None  # the first connection still works


@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_start_that_ray_gives_up_is_tried_once_more(
    num_failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray raises a bare Exception when a node is not up after 30 s, as on a busy machine."""
    import ray

    starts: list[dict[str, object]] = []

    def init(**options: object) -> None:
        starts.append(options)
        if len(starts) <= num_failures:
            raise Exception("The current node timed out during startup.\nMore.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", init)
    if num_failures == 1:
        Cluster(ClusterConfig(record_dir=tmp_path)).close()
    else:
        with pytest.raises(WorkerEnvironmentError, match="did not start.*timed out"):
            Cluster(ClusterConfig(record_dir=tmp_path))
    assert len(starts) == 2
    assert starts[0]["_temp_dir"] != starts[1]["_temp_dir"]
    assert list(tmp_path.iterdir()) == []
    assert not any(Path(str(start["_temp_dir"])).exists() for start in starts)


def test_workers_behind_an_address_get_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", lambda **options: calls.append(options))
    environment = {"DRAFTSMITH_KERNELS": "reference"}
    Cluster(ClusterConfig(record_dir=tmp_path, address="auto", environment=environment)).close()
    [options] = calls
    assert options["address"] == "auto"
    assert options["runtime_env"]["env_vars"] == environment


def test_an_address_where_nothing_listens_is_named_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = ClusterConfig(record_dir=tmp_path, address=address)
        with pytest.raises(WorkerEnvironmentError, match=f"{address}.*--ray-address.*refused"):
            Cluster(config)
