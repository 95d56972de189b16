"""Errors become a message on stderr and an exit code here, and nowhere else.

CliError
├── CliInputError         the command line asks for something that cannot be (exit code 2)
└── CliEnvironmentError   this machine lacks something (exit code 3)

Exit codes: 0 done, 1 a failed ``verify``, 2 bad input, 3 environment, 130 interrupted, 141 nobody
reads stdout any more (``streams.py``).
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import typer

from draftsmith.cli.output import printable
from draftsmith.engine.errors import EngineError, EngineInputError
from draftsmith.kernels.errors import KernelError, KernelInputError
from draftsmith.store.errors import StoreError, StoreInputError
from draftsmith.tuner.errors import TunerError, TunerInputError, TunerInterrupted
from draftsmith.workers.errors import WorkerError, WorkerInputError

VERIFY_FAILED, BAD_INPUT, ENVIRONMENT, INTERRUPTED = 1, 2, 3, 130


class CliError(Exception):
    """Base of the command line's own errors."""


class CliInputError(CliError):
    """Options that contradict each other, or a file that is not what the command reads."""


class CliEnvironmentError(CliError):
    """The machine lacks something that the command needs."""


_INPUT = (
    *(CliInputError, EngineInputError, KernelInputError, StoreInputError),
    *(TunerInputError, WorkerInputError),
)
_OURS = (CliError, EngineError, KernelError, StoreError, TunerError, WorkerError)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Run a command: whatever it raises leaves as ``typer.Exit`` with its message on stderr.

    With ``debug`` errors leave as they are, traceback and all.
    """
    try:
        yield
    except (KeyboardInterrupt, TunerInterrupted) as error:
        _say(f"interrupted: {error}" if str(error) else "interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except (*_OURS, MemoryError, OSError) as error:
        if debug:
            raise
        _say(f"error: {_message(error)}")
        raise typer.Exit(BAD_INPUT if isinstance(error, _INPUT) else ENVIRONMENT) from None
    except Exception as error:
        if debug or type(error).__module__.startswith(("click", "typer")):
            raise  # usage errors and exits are the framework's
        _say(
            f"error: a fault in draftsmith: {type(error).__name__}: {_first_line(error)}\n"
            f"The traceback is in {_write_traceback(error)}; set DRAFTSMITH_DEBUG=1 to see it here."
        )
        raise typer.Exit(ENVIRONMENT) from None


def _message(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "out of memory: use a smaller model, a 16-bit dtype or a lower --concurrency"
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        named = f"{error.filename}: {what}" if error.filename is not None else what
        if error.errno in _FULL:
            return f"{named}: free some space, or write elsewhere (--out, --store)"
        return f"{named}: check that it exists and may be read and written"
    return str(error)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def _write_traceback(error: BaseException) -> Path:
    """Keep the traceback in the user's log folder, or in the temporary one where that is closed."""
    text = "".join(traceback.format_exception(error))
    name = f"fault-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    folder = Path(platformdirs.user_log_dir("draftsmith"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name
    except OSError:
        fallback = Path(tempfile.gettempdir()) / name
        fallback.write_text(text, encoding="utf-8")
        return fallback


def _say(text: str) -> None:
    typer.echo(printable(text, keep="\n"), err=True)
