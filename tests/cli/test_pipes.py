"""What the command does when nobody reads what it prints, and what it lets reach a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Tuned, invoke

SCRIPT = Path(sys.executable).with_name("draftsmith")


def closed() -> int:
    """The end to write to of a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    return writes


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("command", ["verify", "show", "generate", "help"])
def test_a_closed_stdout_ends_quietly(
    command: str, as_json: bool, tuned: Tuned, tiny: Path
) -> None:
    arguments: dict[str, list[object]] = {
        "verify": ["verify", tuned.bundle],
        "show": ["show", "latest", "--store", tuned.store],
        "generate": ["generate", "x", "--target", tiny, "--dtype", "float32", "--max-tokens", 2],
        "help": ["show", "--help"],
    }
    words = [SCRIPT, *map(str, arguments[command]), *(["--json"] if as_json else [])]
    pipe = closed()
    done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    os.close(pipe)
    assert done.returncode == 141, done.stderr
    assert not any(word in done.stderr for word in ("Broken", "error", "Traceback", "Exception"))


def test_tune_goes_on_when_stderr_is_closed(tune_arguments: list[object], tmp_path: Path) -> None:
    words = [SCRIPT, *map(str, tune_arguments), "--json"]
    pipe = closed()
    done = subprocess.run(
        [*words, "--store", tmp_path / "s.db", "--out", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=pipe,
        text=True,
        check=False,
    )
    os.close(pipe)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert Path(document["bundle_path"]).is_dir()


def test_control_characters_of_a_file_do_not_reach_the_terminal(tiny: Path, tmp_path: Path) -> None:
    row = {"prompt": "a", "token_ids": [4], "id": "\u001b[31mred\u202e\n"}
    path = tmp_path / "o.jsonl"
    path.write_text(json.dumps(row))
    result = invoke("verify", path, "--target", tiny, "--dtype", "float32")
    assert "\\x1b[31mred\\u202e\\n" in result.stdout, result.stderr
    assert "\x1b" not in result.stdout and "\u202e" not in result.stdout
    broken = invoke("verify", f"{tmp_path}/\x1b[31mred", "--target", tiny)
    assert "\\x1b[31mred does not exist" in broken.stderr and "\x1b" not in broken.stderr
