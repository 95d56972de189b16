"""The tuning loop, in the order of docs/structure.md.

1 open or resume the run   2 baseline   3-6 calibrate, trace, simulate, gap: not part of this
version 7 explore   8 gate   9 integrate: not part of this version   10 confirm   11 remember and
export
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from draftsmith.store.repository import Repository
from draftsmith.tuner.deployment import Deployment
from draftsmith.tuner.executor import Executor
from draftsmith.tuner.progress import Progress, Silent
from draftsmith.tuner.result import TuneResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How one call of ``tune`` behaves. ``resume`` as in ``Repository.open_run``: True, False or a
    run's uuid. ``incumbent`` is a path for ``incumbent.read_incumbent``. Bundles are written under
    ``bundle_root``.
    """

    bundle_root: Path
    resume: bool | str = True
    incumbent: Path | None = None
    optuna_url: str | None = None
    clock: Callable[[], float] = field(default=time.monotonic)


def tune(
    deployment: Deployment,
    repository: Repository,
    executor: Executor,
    options: RunOptions,
    progress: Progress | None = None,
) -> TuneResult:
    """Tune one deployment and return the verdict; the store holds everything, so a killed call
    resumes.

    Raises TunerInputError (BudgetError with the minimum, once stock's speed is known),
    TunerEnvironmentError when no worker can measure stock, StoreError, and TunerInterrupted after
    KeyboardInterrupt: trials are given back and the run is marked interrupted. The caller closes
    ``executor`` and the database.
    """
    progress = progress or Silent()
    raise NotImplementedError
