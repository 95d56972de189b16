"""Stores that are none, are damaged, or are worked on by others, as the commands meet them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Tuned, invoke, notes_of


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Somebody's database: tables, none of them draftsmith's."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE accounts (name)")
        connection.execute("INSERT INTO accounts VALUES ('kept')")
        connection.commit()
    return path


@pytest.fixture
def copied(tuned: Tuned, tmp_path: Path) -> Path:
    """A store of this test's own, with one finished run."""
    with closing(sqlite3.connect(tuned.store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(shutil.copy(tuned.store, tmp_path / "copied.db"))


@pytest.mark.parametrize(
    "command", [("show",), ("show", "latest"), ("export", "latest", "--out", "x")]
)
@pytest.mark.parametrize("empty", [False, True])
def test_reading_commands_leave_other_databases_alone(
    command: tuple[str, ...], empty: bool, foreign: Path
) -> None:
    if empty:
        foreign.write_bytes(b"")
    content = foreign.read_bytes()
    result = invoke(*command, "--store", foreign)
    assert result.exit_code == 2 and result.stdout == "", result.stderr
    assert f"{foreign} is a database without draftsmith's tables" in result.stderr
    assert ("it is empty" if empty else "it holds accounts") in result.stderr
    assert "Fix: " in result.stderr and "--store" in result.stderr
    assert foreign.read_bytes() == content
    assert [path.name for path in foreign.parent.iterdir()] == [foreign.name]


def test_doctor_leaves_another_database_alone(foreign: Path) -> None:
    content = foreign.read_bytes()
    document = json.loads(invoke("doctor", "--store", foreign, "--json").stdout)
    [store] = [check for check in document["checks"] if check["name"] == "store"]
    assert store["status"] == "optional"
    assert "without draftsmith's tables (it holds accounts)" in store["found"]
    assert "the first run adds its tables" in store["fix"]
    assert foreign.read_bytes() == content


def test_tune_says_that_it_joins_another_database(
    tune_arguments: list[object], foreign: Path, tmp_path: Path
) -> None:
    arguments = (*tune_arguments, "--store", foreign, "--out", tmp_path / "out", "--json")
    first = invoke(*arguments)
    assert first.exit_code == 0, first.stderr
    [note] = [line for line in first.stderr.splitlines() if line.startswith("note: store")]
    assert str(foreign) in note and "(accounts)" in note
    with closing(sqlite3.connect(foreign)) as connection:
        assert connection.execute("SELECT name FROM accounts").fetchall() == [("kept",)]
    assert "note: store" not in invoke("show", "--store", foreign).stderr


def test_tune_goes_on_with_a_run_named_by_its_beginning_or_latest(
    tune_arguments: list[object], tuned: Tuned, copied: Path, tmp_path: Path
) -> None:
    uuid = tuned.document["run"]
    for name in (uuid[:8], "latest"):
        rest = ("--store", copied, "--out", tmp_path / "out", "--run", name, "--json")
        result = invoke(*tune_arguments, *rest)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["run"] == uuid


def test_changed_values_of_a_named_run_are_told_apart(
    tune_arguments: list[object], copied: Path, tmp_path: Path
) -> None:
    rest = ("--store", copied, "--out", tmp_path / "out", "--run", "latest")
    result = invoke(*tune_arguments, *rest, "--temperature", 0.7)
    assert result.exit_code == 2
    assert "regime.sampling.temperature was 0, is 0.7" in result.stderr


@pytest.mark.parametrize("damage", ["flipped", "json", "number"])
def test_a_damaged_store_is_one_message(damage: str, tuned: Tuned, copied: Path) -> None:
    if damage == "flipped":
        content = bytearray(copied.read_bytes())
        content[997::997] = bytes(byte ^ 0xFF for byte in content[997::997])
        copied.write_bytes(content)
    else:
        change = "settings = '{bro'" if damage == "json" else "created_at = 'then'"
        with closing(sqlite3.connect(copied)) as connection:
            connection.execute(f"UPDATE draftsmith_runs SET {change}")
            connection.commit()
    result = invoke("show", "--store", copied)
    assert result.exit_code == 3 and result.stdout == "", result.stderr
    assert "the database file is damaged. Fix: restore it" in result.stderr
    if damage != "flipped":
        assert "draftsmith_runs" in result.stderr and tuned.document["run"] in result.stderr


def test_a_moment_that_no_calendar_holds_is_left_out(copied: Path) -> None:
    with closing(sqlite3.connect(copied)) as connection:
        connection.execute("UPDATE draftsmith_runs SET created_at = 1e300")
        connection.commit()
    result = invoke("show", "--store", copied, "--json")
    assert json.loads(result.stdout)[0]["began"] is None


@pytest.mark.parametrize("address", ["sbad\udcff.db", "sqlite:///sbad\udcff.db"])
@pytest.mark.parametrize("command", ["show", "doctor"])
def test_a_name_that_is_not_utf8_is_refused(
    command: str, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTSMITH_STORE", address)
    result = invoke(command)
    assert result.exit_code == (2 if command == "show" else 3)
    said = " ".join((result.stdout + result.stderr).split())
    assert "not UTF-8" in said and "a fault in draftsmith" not in said


def test_another_kind_of_database_is_answered_with_what_is_supported() -> None:
    result = invoke("show", "--store", "mysql://x/y")
    assert result.exit_code == 2
    assert "mysql is not supported" in result.stderr and "PostgreSQL" in result.stderr
    assert "pip install" not in result.stderr


def test_a_workload_id_with_a_nul_is_refused_by_line_or_skipped(tiny: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"once upon a time {n}"} for n in range(9)]
    rows.insert(4, {"id": "a\x00b", "prompt": "and then"})
    path = tmp_path / "w.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = (
        *("tune", "--in-process", "--target", tiny, "--dtype", "float32", "--max-tokens", 8),
        *("--workload", path, "--max-trials", 1, "--drafters", "ngram", "--budget", "10m"),
        *("--store", tmp_path / "s.db", "--out", tmp_path / "out", "--json"),
    )
    refused = invoke(*arguments)
    assert refused.exit_code == 2 and "line 5" in refused.stderr, refused.stderr
    assert "NUL" in refused.stderr and "--skip-bad-rows" in refused.stderr
    document = json.loads(invoke(*arguments, "--skip-bad-rows").stdout)
    assert document["prompts"]["tuning"] + document["prompts"]["heldout"] == 9
    [note] = notes_of(document)
    assert "1 row could not be read" in note
