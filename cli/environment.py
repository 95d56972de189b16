"""The command line's environment variables, all read here."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """``DRAFTSMITH_DEBUG=1`` shows tracebacks; ``DRAFTSMITH_STORE`` is the default of --store.
    ``for_workers``: those that must hold on every machine of a cluster, so that all measure alike.
    """

    debug: bool
    store: str
    for_workers: dict[str, str]


def read_environment() -> Environment:
    """The variables as they are now."""
    return Environment(
        debug=os.environ.get("DRAFTSMITH_DEBUG", "") not in ("", "0"),
        store=os.environ.get("DRAFTSMITH_STORE") or "runs/draftsmith.db",
        for_workers={"DRAFTSMITH_KERNELS": os.environ.get("DRAFTSMITH_KERNELS", "")},
    )
