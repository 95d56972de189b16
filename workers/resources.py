"""How many processors there really are, and which workers fit on them. No Ray here."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftsmith.workers.errors import WorkerInputError

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one cluster offers. ``cpu_domains``: CPU memory domains, one a machine unless declared
    otherwise; workers of one domain would disturb each other's timings.
    """

    cpus: float
    gpus: float = 0.0
    cpu_domains: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """What the user asks for. None: as many workers as there are domains or GPUs, and an equal
    share of the CPUs for each.
    """

    device: DeviceKind = "cpu"
    num_workers: int | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """``num_workers`` actors, each holding one unit of the Ray resource ``timing_resource``."""

    device: DeviceKind
    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float

    @property
    def timing_resource(self) -> str:
        return timing_resource(self.device)


def timing_resource(device: DeviceKind) -> str:
    """The Ray resource that a timed job holds: one unit a CPU memory domain, one a GPU."""
    return f"timing:{device}"


def device_kind(device: str) -> DeviceKind:
    """Which kind of worker runs a target on ``device`` (``TargetRef.device``)."""
    return "cpu" if device.split(":")[0] == "cpu" else "gpu"


def plan_workers(request: WorkerRequest, available: Resources) -> WorkerPlan:
    """The workers of ``request`` on ``available``. WorkerInputError when they can never run at the
    same time: Ray itself would wait in silence (cases.md B39).
    """
    domains = available.cpu_domains if request.device == "cpu" else math.floor(available.gpus)
    name = "CPU memory domain" if request.device == "cpu" else "GPU"
    gpus = request.gpus_per_worker if request.device == "gpu" else 0.0
    if request.device == "gpu" and not (gpus >= 1.0 and gpus == int(gpus)):
        raise WorkerInputError(
            f"{gpus:g} GPUs a worker: timed jobs never share a GPU; give a whole number, 1 or more"
        )
    if domains < 1:
        raise WorkerInputError(
            f"no {name} to run on: a machine without one, or cluster nodes not started with"
            f" --resources '{{\"{timing_resource(request.device)}\": 1}}' (one for each {name})"
        )
    most = domains if request.device == "cpu" else int(available.gpus // gpus)
    count = max(1, most) if request.num_workers is None else request.num_workers
    if count < 1:
        raise WorkerInputError(f"{count} workers; give 1 or more")
    if request.device == "gpu" and count * gpus > available.gpus:
        raise WorkerInputError(
            f"{count} workers of {gpus:g} GPUs need {count * gpus:g}, there are {available.gpus:g};"
            f" use at most {most} workers of {gpus:g}"
        )
    if count > most:
        raise WorkerInputError(
            f"{count} workers for {domains} {name}{'s' if domains > 1 else ''}: only one timed job"
            f" runs on each at a time; use at most {most} workers"
        )
    cpus = request.cpus_per_worker
    if cpus is None:
        cpus = max(1.0, float(available.cpus // count)) if available.cpus >= 1 else available.cpus
    if cpus <= 0.0:
        raise WorkerInputError(f"{cpus:g} CPUs a worker; give more than 0")
    if count * cpus > available.cpus:
        raise WorkerInputError(
            f"{count} workers of {cpus:g} CPUs need {count * cpus:g}, there are"
            f" {available.cpus:g}; use fewer workers or {available.cpus / count:g} CPUs each"
        )
    return WorkerPlan(
        device=request.device, num_workers=count, cpus_per_worker=cpus, gpus_per_worker=gpus
    )


def available_cpus(root: Path = Path("/")) -> int:
    """CPUs this process may use: its affinity, cut down to the cgroup's quota, at least 1.

    ``root`` is where ``proc`` and ``sys`` are mounted. The host's count would start one worker
    process a host CPU in a container of one (cases.md B39).
    """
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _cgroup_cpus(root)
    return max(1, affinity if quota is None else min(affinity, math.floor(quota)))


def _cgroup_cpus(root: Path) -> float | None:
    """The tightest CPU quota from this process's cgroup to the top, None if unlimited."""
    quotas = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, read = root / "sys/fs/cgroup", _quota_v2
        elif "cpu" in controllers.split(","):
            base, read = root / "sys/fs/cgroup/cpu", _quota_v1
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            quota = read(base.joinpath(*parts[:depth]))
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
