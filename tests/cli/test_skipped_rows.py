"""``--skip-bad-rows``: broken rows are counted and named, never dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import invoke, notes_of


@pytest.fixture
def broken(workload: Path, tmp_path: Path) -> Path:
    path = tmp_path / "broken.jsonl"
    good = workload.read_text().splitlines()
    path.write_text("\n".join([*good[:4], "{oops", *good[4:], '{"prompt": 3}']) + "\n")
    return path


def model_of(tiny: Path, workload: Path) -> list[object]:
    return ["--target", tiny, "--workload", workload, "--dtype", "float32", "--max-tokens", 6]


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "--limit", 2, "--knobs", '{"drafter": "ngram"}'],
        ["tune", "--drafters", "ngram", "--dry-run"],
    ],
    ids=["bench", "dry-run"],
)
def test_skipped_rows_are_noted(command: list[object], tiny: Path, broken: Path) -> None:
    arguments = [*command, *model_of(tiny, broken)]
    refused = invoke(*arguments)
    assert refused.exit_code == 2 and "line 5" in refused.stderr
    skipping = [*arguments, "--skip-bad-rows"]
    result = invoke(*skipping, "--json")
    assert result.exit_code == 0, result.stderr
    [note] = notes_of(json.loads(result.stdout))
    assert "2 rows could not be read" in note and "line 5" in note
    assert note in invoke(*skipping).stdout


def test_bench_notes_prompts_that_are_too_long(tiny: Path, workload: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    long = json.dumps({"prompt": "once upon a time " * 400})
    path.write_text("\n".join([*workload.read_text().splitlines()[:3], long]) + "\n")
    arguments = ["bench", *model_of(tiny, path), "--knobs", '{"drafter": "ngram"}']
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["num_prompts"] == 3
    assert notes_of(document) == ["left out: 1 prompt over 1024 tokens"]


def test_tune_notes_skipped_rows_beside_its_verdict(
    tiny: Path, broken: Path, tmp_path: Path
) -> None:
    arguments = ["tune", *model_of(tiny, broken), "--skip-bad-rows", "--in-process"]
    arguments += ["--budget", "10m", "--max-trials", 1, "--drafters", "ngram", "--heldout", 0.4]
    arguments += ["--store", tmp_path / "s.db", "--out", tmp_path / "out"]
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert sum("2 rows could not be read" in note for note in document["notes"]) == 1
    again = invoke(*arguments, "--run", document["run"])
    assert "2 rows could not be read" in again.stdout


def test_the_file_may_ask_for_it_and_a_flag_takes_it_back(
    tiny: Path, broken: Path, tmp_path: Path
) -> None:
    config = tmp_path / "deployment.yaml"
    config.write_text(
        f"target: {{path: {tiny}, dtype: float32}}\n"
        f"workload: {{path: {broken}, skip_bad_rows: true}}\n"
        "drafters: [ngram]\nregime: {max_tokens: 6}\nbudget: 10m\n"
    )
    arguments = ("tune", "--config", config, "--dry-run", "--json")
    assert notes_of(json.loads(invoke(*arguments).stdout))
    assert invoke(*arguments, "--refuse-bad-rows").exit_code == 2
