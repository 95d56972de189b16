"""``draftsmith doctor``: what this machine has, what is missing, and the fix."""

from __future__ import annotations

from dataclasses import asdict

import typer
from rich.console import Console

from draftsmith.cli import machine
from draftsmith.cli.environment import read_environment
from draftsmith.cli.errors import ENVIRONMENT
from draftsmith.cli.options import JsonOption, StoreOption
from draftsmith.cli.output import Output, table

EXAMPLES = """Examples:

draftsmith doctor

draftsmith doctor --store postgresql://user@host/draftsmith --json"""


def doctor(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: each part as ok, optional or missing, with the fix.

    Exit code 3 when something is missing that every run needs.
    """
    checks = [
        machine.python(),
        *machine.libraries(),
        machine.processors(),
        machine.threads(),
        machine.memory(),
        *machine.kernels(),
        *machine.accelerators(),
        machine.store(store or read_environment().store),
        machine.embedded_model(),
    ]
    missing = [check.name for check in checks if check.status == "missing"]

    def render(console: Console) -> None:
        rows = [(check.name, check.status, check.found, check.fix) for check in checks]
        console.print(table(("part", "status", "found", "fix"), rows))

    document = {"ok": not missing, "checks": [asdict(check) for check in checks]}
    Output(as_json).report(document, render)
    if missing:
        raise typer.Exit(ENVIRONMENT)
