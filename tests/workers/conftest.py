"""One small local cluster for all Ray tests of the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from draftsmith.workers.cluster import ClusterConfig
from draftsmith.workers.pool import PoolLimits, RayExecutor
from draftsmith.workers.resources import WorkerRequest
from tests.support.acting import make_acting_factory


@pytest.fixture(scope="session")
def ray_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    """One CPU worker, whose jobs do what ``tests/support/acting.py`` reads in their ids. Shared
    memory is too small for the object store, as in a container (cases.md B39).
    """
    folder = tmp_path_factory.mktemp("ray")
    with RayExecutor(
        ClusterConfig(record_dir=folder / "records", cpus=1, shm=folder / "no-shared-memory"),
        WorkerRequest(),
        factory=make_acting_factory(),
        limits=PoolLimits(grace_s=1.0, load_s=200.0, cancel_s=1.0),
    ) as executor:
        yield executor


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint on disk, for workers that load it themselves."""
    from tests.support.tinymodels import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny"))
