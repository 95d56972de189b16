"""A job on its way to a Ray worker and back: the pool's records, its reading of Ray's errors."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from draftsmith.engine.job import MeasureJob


@dataclass(slots=True)
class Pending:
    job: MeasureJob
    attempts: int = 0  # workers that died under it


@dataclass(slots=True)
class Flight:
    """A job on a worker. ``loading`` is answered once the target is there; then the job's time
    starts.
    """

    pending: Pending
    loading: Any
    running: Any
    deadline_s: float
    loaded: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class Worker:
    name: str
    actor: Any = None
    flight: Flight | None = None


def with_absolute_paths(job: MeasureJob) -> MeasureJob:
    """Workers run in another folder: paths relative to the driver's are made absolute. Names (the
    embedded model's, a hub id) stay.
    """
    configs = {
        name: replace(config, draft_model=_absolute(config.draft_model))
        if config.draft_model
        else config
        for name, config in job.configs.items()
    }
    return replace(
        job, target=replace(job.target, path=_absolute(job.target.path)), configs=configs
    )


def _absolute(path: str) -> str:
    return os.path.abspath(path) if os.path.exists(path) else path


def reason_of(error: BaseException) -> str:
    """The telling line of one of Ray's long messages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "exit detail" in line or "has died" in line]
    text = (telling or lines or [type(error).__name__])[-1]
    return text if len(text) <= 400 else text[:397] + "..."
