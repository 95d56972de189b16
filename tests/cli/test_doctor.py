"""``doctor`` reports every part, and its exit code follows what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftsmith.cli import machine
from draftsmith.kernels import device
from draftsmith.kernels.device import Card
from tests.cli.conftest import invoke


def test_every_part_is_reported(tmp_path: Path) -> None:
    result = invoke("doctor", "--store", tmp_path / "s.db", "--json")
    document = json.loads(result.stdout)
    names = {check["name"] for check in document["checks"]}
    wanted = {"python", "torch", "ray", "cores", "threads", "memory", "kernels", "row-stable"}
    assert wanted | {"gpu", "triton", "store", "model smollm2"} <= names
    assert result.exit_code == (0 if document["ok"] else 3)
    assert not (tmp_path / "s.db").exists()


def checks_of(environment: dict[str, str]) -> dict[str, dict[str, str]]:
    """What the command finds in a process of its own, by part."""
    done = subprocess.run(
        [Path(sys.executable).with_name("draftsmith"), "doctor", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.parametrize("switch", ["", "reference"])
def test_each_kernel_is_shown_as_it_runs(switch: str) -> None:
    checks = checks_of({"DRAFTSMITH_KERNELS": switch})
    found = {name.removeprefix("kernel "): c["found"] for name, c in checks.items()}
    if switch != "reference" and not found["kernels"].startswith("cpp"):
        pytest.skip(found["kernels"])
    native, row_stable = ("reference", "not row-stable") if switch else ("cpp", "row-stable")
    assert found["linear"] == found["tree_attention"] == f"{native}, {row_stable}"
    assert found["noise"] == f"{native}, row-stable"  # the same bits in both forms
    assert found["gather_cache"] == "reference, row-stable"  # a copy, without another form
    assert found["row-stable"].split()[0] == ("no" if switch else "yes")
    assert ("ties" in checks["row-stable"]["fix"]) == bool(switch)
    assert ("unset DRAFTSMITH_KERNELS" in checks["kernels"]["fix"]) == bool(switch)


def test_a_form_that_is_asked_for_is_shown() -> None:
    found = checks_of({"DRAFTSMITH_KERNELS": "avx2"})["kernels"]
    if found["status"] != "ok":
        pytest.skip(found["found"])
    assert found["found"].startswith("cpp: AVX2 form (asked for by DRAFTSMITH_KERNELS)")


def test_a_form_that_cannot_run_is_missing_and_told_apart_from_none() -> None:
    found = checks_of({"DRAFTSMITH_KERNELS": "avx512", "CXX": "no-such-compiler"})["kernels"]
    assert found["status"] == "missing"
    assert "DRAFTSMITH_KERNELS is 'avx512', which cannot run here" in found["found"]
    assert "unset it" in found["fix"]


def test_without_a_compiler_the_reference_is_shown_with_the_fix() -> None:
    checks = checks_of({"CXX": "no-such-compiler", "DRAFTSMITH_KERNELS": ""})
    assert checks["kernels"]["found"].startswith("reference: ")
    assert "no-such-compiler" in checks["kernels"]["found"]
    assert checks["kernel linear"]["found"] == "reference, not row-stable"
    assert checks["row-stable"]["found"].split()[0] == "no"
    assert "g++" in checks["kernels"]["fix"]


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


def test_cards_are_shown_with_what_keeps_the_kernels_off_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    common = dict(platform="cuda", memory_bytes=40 * machine.GIB, num_units=54)
    new = Card(index=0, name="New", architecture="sm90", problem=None, **common)  # type: ignore[arg-type]
    old = Card(index=1, name="Old", architecture="sm75", problem="too old", **common)  # type: ignore[arg-type]
    monkeypatch.setattr(device, "cards", lambda: (new, old))
    first, second, triton = machine.accelerators()
    assert (first.status, first.found) == ("ok", "0: New by cuda, sm90, 40 GiB, 54 units")
    assert (second.status, second.fix) == ("missing", "too old")
    monkeypatch.setattr(machine.util, "find_spec", lambda name: None)
    assert machine.accelerators()[-1].status == "missing"
    monkeypatch.setattr(device, "cards", lambda: ())
    assert [check.status for check in machine.accelerators()] == ["optional", "optional"]
