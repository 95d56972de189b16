"""Case B39 without Ray: what never fits is said, and containers are believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftsmith.workers.errors import WorkerInputError
from draftsmith.workers.resources import (
    Resources,
    WorkerRequest,
    available_cpus,
    device_kind,
    plan_workers,
)

ONE_GPU = Resources(cpus=8, gpus=1)
FOUR_GPUS = Resources(cpus=8, gpus=4)


def test_b39_two_workers_of_a_fraction_of_one_gpu_are_refused() -> None:
    request = WorkerRequest(device="gpu", num_workers=2, gpus_per_worker=0.6)
    with pytest.raises(WorkerInputError, match="never share a GPU"):
        plan_workers(request, ONE_GPU)


def test_b39_timed_jobs_never_share_a_gpu_even_where_fractions_would_fit() -> None:
    request = WorkerRequest(device="gpu", num_workers=2, gpus_per_worker=0.5)
    with pytest.raises(WorkerInputError, match="never share a GPU"):
        plan_workers(request, ONE_GPU)


@pytest.mark.parametrize(("workers", "gpus"), [(2, 1.0), (1, 2.0)])
def test_more_gpus_than_there_are(workers: int, gpus: float) -> None:
    request = WorkerRequest(device="gpu", num_workers=workers, gpus_per_worker=gpus)
    with pytest.raises(WorkerInputError, match="there are 1"):
        plan_workers(request, ONE_GPU)


def test_no_gpu_at_all() -> None:
    with pytest.raises(WorkerInputError, match="no GPU"):
        plan_workers(WorkerRequest(device="gpu"), Resources(cpus=4))


def test_one_worker_a_gpu_by_default() -> None:
    plan = plan_workers(WorkerRequest(device="gpu"), FOUR_GPUS)
    assert (plan.num_workers, plan.gpus_per_worker, plan.cpus_per_worker) == (4, 1.0, 2.0)
    assert plan.timing_resource == "timing:gpu"


def test_one_worker_with_all_cpus_on_a_cpu_machine() -> None:
    plan = plan_workers(WorkerRequest(), Resources(cpus=6))
    assert (plan.num_workers, plan.cpus_per_worker, plan.gpus_per_worker) == (1, 6.0, 0.0)
    assert plan.timing_resource == "timing:cpu"


def test_b39_one_cpu_gives_one_worker() -> None:
    assert plan_workers(WorkerRequest(), Resources(cpus=1)).num_workers == 1


def test_a_second_worker_on_the_same_memory_domain_is_refused() -> None:
    with pytest.raises(WorkerInputError, match="at most 1 worker"):
        plan_workers(WorkerRequest(num_workers=2), Resources(cpus=8))
    plan = plan_workers(WorkerRequest(num_workers=2), Resources(cpus=8, cpu_domains=2))
    assert (plan.num_workers, plan.cpus_per_worker) == (2, 4.0)


@pytest.mark.parametrize("request_", [{"cpus_per_worker": 9.0}, {"cpus_per_worker": 0.0}])
def test_cpus_that_never_fit(request_: dict[str, float]) -> None:
    with pytest.raises(WorkerInputError, match="CPUs"):
        plan_workers(WorkerRequest(**request_), Resources(cpus=8))
    with pytest.raises(WorkerInputError, match="0 workers"):
        plan_workers(WorkerRequest(num_workers=0), Resources(cpus=8))


def test_device_kind() -> None:
    assert [device_kind(name) for name in ("cpu", "cuda", "cuda:1")] == ["cpu", "gpu", "gpu"]


def _machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_b39_cgroup_quota_of_one_cpu(tmp_path: Path) -> None:
    inner = {"sys/fs/cgroup/box/cpu.max": "100000 100000\n", "sys/fs/cgroup/cpu.max": "max 100000"}
    assert available_cpus(_machine(tmp_path, "0::/box\n", inner)) == 1


def test_quota_of_an_outer_cgroup_counts(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/a/cpu.max": "150000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}
    assert available_cpus(_machine(tmp_path, "0::/a/b\n", files)) == 1


def test_cgroup_version_one(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/cpu/box/"
    files = {f"{folder}cpu.cfs_quota_us": "50000", f"{folder}cpu.cfs_period_us": "100000"}
    assert available_cpus(_machine(tmp_path, "3:cpu,cpuacct:/box\n", files)) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_affinity_without_quota(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cpus(_machine(tmp_path, "0::/\n", {})) == 1
    finally:
        os.sched_setaffinity(0, before)
