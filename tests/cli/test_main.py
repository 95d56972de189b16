"""Help, version, and how errors become messages and exit codes."""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
import typer

from draftsmith.cli.errors import CliInputError, reported
from draftsmith.cli.main import COMMANDS
from draftsmith.engine.errors import EngineEnvironmentError, UnsupportedError
from draftsmith.store.errors import RunBusyError, StoreInputError
from draftsmith.tuner.errors import BudgetError, TunerInterrupted
from draftsmith.workers.errors import WorkerEnvironmentError, WorkerInputError
from tests.cli.conftest import invoke

ROOT = Path(__file__).resolve().parents[2]


def test_version() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (
        0,
        f"draftsmith {metadata.version('draftsmith')}\n",
    )


def test_help_lists_every_command_without_loading_torch() -> None:
    code = (
        "import sys; sys.argv = ['draftsmith', '--help']\n"
        "from draftsmith.cli.main import run\n"
        "try: run()\n"
        "finally: assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command_has_its_text_and_examples(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    module = import_module(f"draftsmith.cli.{name}")
    first = getattr(module, name).__doc__.split()[:3]
    assert " ".join(first) in " ".join(result.stdout.split())
    assert f"draftsmith {name}" in module.EXAMPLES and "Examples:" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_command_body_is_short(name: str) -> None:
    tree = ast.parse((ROOT / "cli" / f"{name}.py").read_text())
    [made] = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    body = (made.body[-1].end_lineno or 0) - made.body[0].lineno
    assert body <= 80


def test_unknown_command_is_told_its_near_match() -> None:
    result = invoke("tunne")
    assert result.exit_code == 2
    assert "tunne" in result.stderr and "'tune'" in result.stderr


def test_unknown_option_is_refused() -> None:
    result = invoke("doctor", "--fast")
    assert result.exit_code == 2 and "--fast" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CliInputError("x"), 2),
        (UnsupportedError("x"), 2),
        (StoreInputError("x"), 2),
        (BudgetError("x"), 2),
        (WorkerInputError("x"), 2),
        (EngineEnvironmentError("x"), 3),
        (RunBusyError("x"), 3),
        (WorkerEnvironmentError("x"), 3),
        (MemoryError(), 3),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/file"), 3),
        (KeyboardInterrupt(), 130),
        (TunerInterrupted("x"), 130),
    ],
)
def test_error_becomes_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, reported(debug=False):
        raise error
    assert caught.value.exit_code == code
    assert "Traceback" not in capsys.readouterr().err


def test_disk_full_names_file_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reported(debug=False):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/file")
    message = capsys.readouterr().err
    assert "/full/file" in message and "free some space" in message


def test_fault_leaves_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(typer.Exit) as caught, reported(debug=False):
        raise ZeroDivisionError("by accident")
    message = capsys.readouterr().err
    [log] = tmp_path.rglob("*.log")
    assert caught.value.exit_code == 3
    assert "by accident" in message and str(log) in message and "Traceback" not in message
    assert "Traceback" in log.read_text()


def test_debug_shows_the_error_itself() -> None:
    with pytest.raises(BudgetError), reported(debug=True):
        raise BudgetError("x")


def test_json_fits_a_stdout_that_is_not_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftsmith.cli.output import Output

    document = {"text": "\u00e9 \u2026 \U0001f600"}
    for encoding in ("ascii", "latin-1", "utf-8"):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        Output(True).report(document, lambda console: None)
        stream.flush()
        assert json.loads(raw.getvalue().decode(encoding)) == document
