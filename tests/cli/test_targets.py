"""A bundle beside a model that it was not tuned for, and one whose target is not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftsmith.cli.output import ratio_text
from tests.cli.conftest import Tuned, invoke, notes_of
from tests.support.tinymodels import save_tiny

REJECTION = '{"drafter": "ngram", "block_size": 3, "verifier": "rejection"}'


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "other", num_layers=1)


@pytest.mark.parametrize("command", ["verify", "decode", "generate", "bench"])
def test_another_target_than_the_bundles_is_told(
    command: str, tuned: Tuned, tiny: Path, other: Path, workload: Path
) -> None:
    bench = ("bench", "--bundle", tuned.bundle, "--workload", workload, "--limit", 2)
    arguments: dict[str, tuple[object, ...]] = {
        "verify": ("verify", tuned.bundle),
        "decode": ("verify", tuned.bundle, "--decode"),
        "generate": ("generate", "once", "--bundle", tuned.bundle, "--max-tokens", 4),
        "bench": (*bench, "--max-tokens", 4),
    }
    result = invoke(*arguments[command], "--target", other, "--json")
    [note] = notes_of(json.loads(result.stdout))
    assert note in " ".join(result.stderr.split())
    assert f"bundle {tuned.bundle} was tuned for another target (sha256:" in note
    assert str(other) in note
    result = invoke(*arguments[command], "--target", tiny, "--json")
    assert result.exit_code == 0, result.stderr
    assert notes_of(json.loads(result.stdout)) == [] and "another target" not in result.stderr


def test_a_target_that_is_not_here_names_bundle_and_option(
    workload: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "gemma").symlink_to(tiny)
    monkeypatch.chdir(tmp_path / "there")
    made = invoke(
        *("tune", "--target", "gemma", "--workload", workload, "--dtype", "float32"),
        *("--in-process", "--max-trials", 1, "--drafters", "ngram", "--max-tokens", 8, "--json"),
    )
    assert made.exit_code == 0, made.stderr
    bundle = Path(json.loads(made.stdout)["bundle_path"]).absolute()
    monkeypatch.chdir(tmp_path)
    result = invoke("verify", bundle)
    assert result.exit_code == 2
    assert str(bundle) in result.stderr and "'gemma', relative to where it was" in result.stderr
    assert "give --target" in result.stderr
    assert invoke("verify", bundle, "--target", tiny).exit_code == 0


def test_check_of_a_verifier_that_is_exact_in_distribution_only(tiny: Path) -> None:
    found = set()
    for seed in range(6):
        result = invoke(
            *("generate", "once upon a time once upon a time", "--target", tiny),
            *("--dtype", "float32", "--max-tokens", 24, "--temperature", 1.0, "--seed", seed),
            *("--knobs", REJECTION, "--check", "--json"),
        )
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        found.add((document["equals_stock"], document["verdict"]))
    assert (False, "lossless in distribution") in found
    assert found <= {(False, "lossless in distribution"), (True, "lossless")}


def test_a_run_is_named_by_its_beginning(tuned: Tuned, tune_arguments: list[object]) -> None:
    places = ("--store", tuned.store, "--out", tuned.bundle.parent, "--json")
    for name in (tuned.document["run"][:8], "latest"):
        result = invoke(*tune_arguments, "--run", name, *places)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["run"] == tuned.document["run"]


def test_an_interval_without_bounds_is_left_out() -> None:
    assert ratio_text(0.9, 0.0, float("inf")) == "0.90x"
    assert ratio_text(0.9, 0.8, 1.0) == "0.90x (0.80 to 1.00)"
