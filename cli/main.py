"""The ``draftsmith`` command: one Typer app, one module a subcommand, imported when called."""

from __future__ import annotations

import logging
import signal
import sys
from importlib import import_module, metadata
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from draftsmith.cli.environment import read_environment
from draftsmith.cli.errors import reported
from draftsmith.cli.streams import guard_streams

COMMANDS = {
    "tune": "Find the fastest configuration whose outputs stay unchanged, and prove it.",
    "bench": "Compare stock with configurations, interleaved in time.",
    "generate": "Generate one answer, with speculation or without.",
    "verify": "Prove outputs equal to stock's, token by token.",
    "show": "Show runs, one run's verdict and trials, a bundle, or the knobs.",
    "export": "Export a run's bundle for an engine.",
    "doctor": "Check this machine, part by part.",
}

_HELP = """Find the fastest speculative decoding for your deployment, every output token unchanged.

Tune, and read the verdict; verify proves the winner again, wherever the model is."""

_EPILOG = """Examples:

draftsmith doctor

draftsmith tune --target smollm2 --workload builtin --budget 10m

draftsmith tune --target ./my-model --workload prompts.jsonl --device cuda

Exit codes: 0 done, 1 a failed verify, 2 bad input, 3 environment, 130 interrupted,
141 nobody reads stdout any more."""


class _Commands(TyperGroup):
    """Imports a command when it is called, so that help and completion need no torch, and runs it
    inside the one place that translates errors.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name=name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(name) if name else None, rest

    def invoke(self, ctx: Any) -> Any:
        with reported(debug=read_environment().debug):
            return super().invoke(ctx)


app = typer.Typer(
    name="draftsmith",
    cls=_Commands,
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftsmith {metadata.version('draftsmith')}")
        raise typer.Exit()


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options before the command."""


def _load(name: str) -> Any:
    """The command of module ``cli/<name>.py``: its function ``<name>``, its text ``EXAMPLES``."""
    module = import_module(f"draftsmith.cli.{name}")
    one = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    one.command(name, epilog=module.EXAMPLES)(getattr(module, name))
    return typer.main.get_command(one)


def run() -> None:
    """Console entry point. SIGTERM unwinds like Ctrl-C: workers end, runs stay resumable. Closed
    pipes are dealt with in ``streams.py``.
    """
    guard_streams()
    # What our modules log, the commands say themselves, once.
    logging.getLogger("draftsmith").addHandler(logging.NullHandler())
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    finally:
        sys.stdout.flush()  # here, where a closed pipe still becomes an exit code


def _terminate(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    raise KeyboardInterrupt("stopped by SIGTERM")
