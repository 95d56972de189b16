from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import psutil
import pytest

from draftsmith.engine.job import MeasureResult, TargetRef
from draftsmith.workers.measure import Measurer
from draftsmith.workers.pool import RayExecutor
from tests.support.measuring import NGRAM, make_job

pytestmark = pytest.mark.ray

WAIT_S = 240.0


def act(executor: RayExecutor, *job_ids: str, **fields: object) -> list[MeasureResult]:
    """Submit jobs without a target and take as many results."""
    target = TargetRef(path="none")
    for job_id in job_ids:
        executor.submit(make_job({}, job_id=job_id, target=target, **{"timeout_s": 60.0, **fields}))
    return [take(executor) for _ in job_ids]


def take(executor: RayExecutor) -> MeasureResult:
    result = executor.next_result(WAIT_S)
    assert result is not None
    return result


def start(executor: RayExecutor, job_id: str) -> None:
    """Submit a job and wait until it runs."""
    executor.submit(make_job({}, job_id=job_id, target=TargetRef(path="none"), timeout_s=60.0))
    assert executor.worker_pids()
    assert executor.next_result(0.5) is None


def test_jobs_come_back_one_by_one(ray_executor: RayExecutor) -> None:
    results = act(ray_executor, "sleep:0.1", "sleep:0", "sleep:0.1")
    assert [r.job_id for r in results] == ["sleep:0.1", "sleep:0", "sleep:0.1"]
    assert {(r.status, r.worker) for r in results} == {("ok", "cpu0")}
    assert ray_executor.next_result(0.0) is None
    assert ray_executor.num_workers == 1


def test_a_measured_job_equals_the_one_measured_here(
    ray_executor: RayExecutor, tiny_folder: Path
) -> None:
    """The worker loads the target from its path: what is sent is small, whatever the model."""
    target = TargetRef(path=str(tiny_folder), dtype="float32", num_threads=1)
    job = make_job({"trial": NGRAM}, job_id="measure", num_requests=2, target=target)
    assert len(pickle.dumps(job)) < 10_000
    ray_executor.submit(job)
    there, here = take(ray_executor), Measurer().run(job)
    assert there.status == here.status == "ok", there.reason
    assert there.outputs == here.outputs
    assert [t.num_accepted for t in there.timings] == [t.num_accepted for t in here.timings]


def test_workers_do_not_see_the_drivers_folder(ray_executor: RayExecutor) -> None:
    """Started from a checkout's root, ``import kernels`` must not find our folder there."""
    (result,) = act(ray_executor, "where:")
    root = str(Path(__file__).parents[2])
    assert root not in result.reason.split("|")
    assert os.getcwd() not in result.reason.split("|")


def test_b29_a_hang_is_a_timeout_and_the_next_job_runs(ray_executor: RayExecutor) -> None:
    """B29: killed at limit + grace."""
    hung, after = act(ray_executor, "hang:600", "sleep:0", timeout_s=0.5)
    assert (hung.status, after.status) == ("timeout", "ok")
    assert "limit of 0.5 s" in hung.reason


def test_one_death_is_retried_unseen(ray_executor: RayExecutor, tmp_path: Path) -> None:
    (result,) = act(ray_executor, f"die-once:{tmp_path / 'died'}")
    assert result.status == "ok" and (tmp_path / "died").exists()


def test_a_job_that_kills_its_worker_is_reported_and_the_next_runs(
    ray_executor: RayExecutor,
) -> None:
    dead, after = act(ray_executor, f"die:{signal.SIGKILL}", "sleep:0")
    assert (dead.status, after.status) == ("died", "ok")
    assert "died 2 times" in dead.reason


def test_a_worker_killed_from_outside_costs_nothing(ray_executor: RayExecutor) -> None:
    start(ray_executor, "sleep:2")
    os.kill(ray_executor.worker_pids()[0], signal.SIGKILL)
    result = take(ray_executor)
    assert (result.job_id, result.status) == ("sleep:2", "ok")


def test_a_fault_of_the_runner_is_an_error(ray_executor: RayExecutor) -> None:
    (result,) = act(ray_executor, "raise:a planted fault")
    assert result.status == "error" and "a planted fault" in result.reason
    assert "\n" not in result.reason


def test_cancelling(ray_executor: RayExecutor) -> None:
    start(ray_executor, "sleep:100")
    ray_executor.submit(make_job({}, job_id="queued", target=TargetRef(path="none")))
    ray_executor.cancel_all()
    results = {r.job_id: r for r in (take(ray_executor), take(ray_executor))}
    assert {r.status for r in results.values()} == {"cancelled"}
    assert results["sleep:100"].reason == "told"
    assert ray_executor.next_result(0.0) is None


def test_cancelling_a_job_that_does_not_listen_kills_its_worker(
    ray_executor: RayExecutor,
) -> None:
    start(ray_executor, "hang:600")
    ray_executor.cancel_all()
    result = take(ray_executor)
    assert result.status == "cancelled" and "killed" in result.reason


def test_raylet_killed_the_job_in_flight_is_done_once(ray_executor: RayExecutor) -> None:
    start(ray_executor, "sleep:1")
    raylets = [p for p in psutil.Process().children(recursive=True) if p.name() == "raylet"]
    assert len(raylets) == 1
    raylets[0].kill()
    result = take(ray_executor)
    assert (result.job_id, result.status) == ("sleep:1", "ok")
    assert ray_executor.next_result(0.0) is None


def test_a_timed_worker_runs_at_the_drivers_own_priority(ray_executor: RayExecutor) -> None:
    """Ray's default (nice 15) would time the worker behind everything else on the machine."""
    start(ray_executor, "sleep:1")
    priorities = {psutil.Process(pid).nice() for pid in ray_executor.worker_pids()}
    take(ray_executor)
    assert priorities == {psutil.Process().nice()}
