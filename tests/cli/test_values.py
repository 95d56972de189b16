"""Values of options: every refusal names option, value and limit, and no two commands differ."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.sampling import check_sampling
from draftsmith.engine.types import Sampling
from draftsmith.tuner.deployment_file import KEYS
from tests.cli.conftest import Tuned, invoke

COMMANDS: dict[str, tuple[object, ...]] = {
    "tune": ("tune", "--in-process", "--workload", "builtin"),
    "bench": ("bench", "--workload", "builtin"),
    "generate": ("generate", "hello"),
    "verify": ("verify", "outputs.jsonl"),
}


def refused(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr and result.stdout == ""
    return result.stderr


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("--temperature", "nan", "a number, at least 0 and at most 100"),
        ("--temperature", "-1", "at least 0 and at most 100"),
        ("--temperature", "101", "at least 0 and at most 100"),
        ("--top-p", "nan", "a number, more than 0 and at most 1"),
        ("--top-p", "0", "more than 0 and at most 1"),
        ("--seed", "-1", "at least 0 and at most 9223372036854775807"),
        ("--seed", str(2**63), "at least 0 and at most 9223372036854775807"),
        ("--threads", "0", "at least 1 and at most 1024"),
        ("--max-tokens", "0", "at least 1 and at most 1000000"),
        ("--max-tokens", "many", "a whole number, at least 1 and at most 1000000"),
    ],
)
def test_a_number_outside_its_limits(
    command: str, option: str, value: str, limit: str, tiny: Path
) -> None:
    message = refused(*COMMANDS[command], "--target", tiny, f"{option}={value}")
    assert message.startswith(f"error: {option} is ") and value in message and limit in message


@pytest.mark.parametrize("command", ["tune", "bench"])
@pytest.mark.parametrize(
    ("option", "value", "limit"),
    [
        ("--concurrency", "0", "at least 1 and at most 256"),
        ("--concurrency", "2.5", "a whole number, at least 1 and at most 256"),
        ("--limit", "1", "at least 2"),
    ],
)
def test_a_number_of_the_workload(
    command: str, option: str, value: str, limit: str, tiny: Path
) -> None:
    message = refused(*COMMANDS[command], "--target", tiny, f"{option}={value}")
    assert f"{option} is {value}: " in message and limit in message


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("temperature", "regime.temperature"),
        ("top_p", "regime.top_p"),
        ("min_p", "regime.min_p"),
        ("max_tokens", "regime.max_tokens"),
        ("seed", "regime.seed"),
    ],
)
def test_the_engine_takes_what_the_options_take(name: str, key: str) -> None:
    check_sampling(replace(Sampling(), **{name: KEYS[key].high}), 64)
    if name != "seed":  # rows of another engine's outputs may have 64 bits
        with pytest.raises(EngineInputError, match=name):
            check_sampling(replace(Sampling(), **{name: KEYS[key].high + 1}), 64)


def test_a_large_seed_is_one_for_every_command(tiny: Path, workload: Path) -> None:
    shared = ("--target", tiny, "--dtype", "float32", "--max-tokens", 4, "--seed", 2**62)
    assert invoke("generate", "hello", *shared).exit_code == 0
    tune = ("tune", "--in-process", "--workload", workload, "--dry-run")
    result = invoke(*tune, *shared)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify", ""),
        ("generate", "x", "--bundle", ""),
        ("generate", "x", "--target", ""),
        ("bench", "--target", "x", "--bundle", ""),
        ("tune", "--target", "x", "--workload", ""),
        ("tune", "--incumbent", ""),
        ("tune", "--out", ""),
        ("export", "", "--out", "x"),
    ],
    ids=" ".join,
)
def test_an_empty_value_is_no_folder(arguments: tuple[str, ...]) -> None:
    assert " is '': give a value, or drop it" in refused(*arguments)


def test_out_that_cannot_be_named_again(tiny: Path, workload: Path, tuned: Tuned) -> None:
    out = os.fsdecode(b"bad\xff")
    for command in (("tune", "--target", tiny, "--workload", workload), ("export", tuned.bundle)):
        message = refused(*command, "--out", out)
        assert "'bad\\udcff'" in message and "not UTF-8" in message


def test_a_file_is_no_bundle(workload: Path) -> None:
    message = refused("generate", "x", "--bundle", workload)
    assert f"{workload} is a file" in message and "folder" in message


def test_a_device_is_no_file_of_outputs(tiny: Path) -> None:
    message = refused("verify", "/dev/zero", "--target", tiny)
    assert "/dev/zero is a device" in message and "does not exist" not in message


def test_outputs_come_through_a_pipe(tiny: Path, tmp_path: Path) -> None:
    made = invoke(
        *("generate", "once upon", "--target", tiny, "--dtype", "float32"),
        *("--max-tokens", 4, "--json"),
    )
    row = " ".join(made.stdout.split())
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(row,))
    writer.start()
    result = invoke("verify", tmp_path / "pipe", "--target", tiny, "--dtype", "float32")
    writer.join()
    assert result.exit_code == 0, result.stderr
    assert "lossless" in result.stdout
