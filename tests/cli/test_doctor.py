"""``doctor`` reports every part, and its exit code follows what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftsmith.cli import machine
from tests.cli.conftest import invoke


def test_every_part_is_reported(tmp_path: Path) -> None:
    result = invoke("doctor", "--store", tmp_path / "s.db", "--json")
    document = json.loads(result.stdout)
    names = {check["name"] for check in document["checks"]}
    wanted = {"python", "torch", "ray", "cores", "threads", "memory", "kernels", "row-stable"}
    assert wanted | {"gpu", "triton", "store", "model smollm2"} <= names
    assert result.exit_code == (0 if document["ok"] else 3)
    assert not (tmp_path / "s.db").exists()


def test_what_is_not_ok_comes_with_a_fix() -> None:
    checks = json.loads(invoke("doctor", "--json").stdout)["checks"]
    assert all(check["fix"] for check in checks if check["status"] == "missing")


def test_store_that_is_no_database_is_missing_with_exit_3(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("no database at all, and long enough to be looked at")
    result = invoke("doctor", "--store", tmp_path / "s.db")
    assert result.exit_code == 3
    assert "not a SQLite database" in " ".join(result.stdout.split())


def test_little_memory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LEAST_MEMORY", 1 << 60)
    check = machine.memory()
    assert check.status == "missing" and "GiB" in check.fix
