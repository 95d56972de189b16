"""``tune --fix KNOB=VALUE``: held knobs from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import invoke


def plan_knobs(*arguments: object) -> dict[str, str]:
    result = invoke("tune", *arguments, "--budget", "10m", "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    return {row["name"]: row["values"] for row in json.loads(result.stdout)["knobs"]}


@pytest.fixture
def deployment(tiny: Path, workload: Path, tmp_path: Path) -> Path:
    path = tmp_path / "deployment.yaml"
    path.write_text(
        f"target: {{path: {tiny}, dtype: float32}}\nworkload: {{path: {workload}}}\n"
        "drafters: [early_exit]\nregime: {max_tokens: 8}\nfixed: {tree: static, block_size: 3}\n"
    )
    return path


def test_fix_holds_knobs_and_beats_the_file(deployment: Path) -> None:
    flags = ("--fix", "tree=chain", "--fix", "stop_threshold=0.25", "--fix", "skip_layers=[1]")
    knobs = plan_knobs("--config", deployment, *flags)
    assert knobs["tree"] == "chain (fixed)" and knobs["stop_threshold"] == "0.25 (fixed)"
    assert knobs["skip_layers"] == "[1] (fixed)"
    assert knobs["block_size"] == "3 (fixed)"  # the file's
    assert "fixed" not in knobs["draft_vocab"]
    assert plan_knobs("--config", deployment)["tree"] == "static (fixed)"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["tree=comb"], ["tree", "comb", "chain, static, dynamic"]),
        (["block_size=many"], ["block_size", "many", "1..16"]),
        (["block_size=40"], ["block_size", "40", "from 1 to 16"]),
        (["block_size=2.5"], ["block_size", "2.5", "1..16"]),
        (["exit_layer=2"], ["exit_layer", "2", "from 1 to 1"]),
        (["skip_layers=1,x"], ["skip_layers", "1,x", "list of 0.."]),
        (["blok_size=4"], ["blok_size", "block_size"]),
        (["match_max=4"], ["match_max", "cannot be fixed", "stop_threshold"]),
        (["tree"], ["tree", "KNOB=VALUE"]),
        (["tree="], ["tree=", "KNOB=VALUE"]),
        (["tree=chain", "tree=static"], ["tree", "twice"]),
    ],
)
def test_bad_values_are_refused_with_knob_value_and_what_is_allowed(
    deployment: Path, flags: list[str], said: list[str]
) -> None:
    options = [part for flag in flags for part in ("--fix", flag)]
    result = invoke("tune", "--config", deployment, *options, "--dry-run")
    assert result.exit_code == 2 and result.stdout == "", result.stderr
    for part in said:
        assert part in result.stderr
