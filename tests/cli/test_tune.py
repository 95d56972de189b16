"""``tune`` from flags to a verdict, and what the reading commands say about its run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from draftsmith.store.bundle import read_bundle
from tests.cli.conftest import Tuned, invoke


def test_json_is_one_document_with_the_verdict_and_progress_is_on_stderr(tuned: Tuned) -> None:
    assert tuned.document["verdict"] in ("winner", "off", "inconclusive")
    assert tuned.document["lossless"]["num_divergent"] == 0
    assert "baseline" in tuned.stderr and "confirm" in tuned.stderr
    assert read_bundle(tuned.bundle).parts.config == tuned.document["config"]


def test_finished_run_repeats_its_verdict(tuned: Tuned, tune_arguments: list[object]) -> None:
    places = ("--store", tuned.store, "--out", tuned.bundle.parent)
    result = invoke(*tune_arguments, "--run", tuned.document["run"], *places, "--json")
    again = json.loads(result.stdout)
    assert result.exit_code == 0
    assert again["run"] == tuned.document["run"] and again["resumed"]
    assert again["trials"] == tuned.document["trials"]


def test_sigterm_exits_130_and_the_same_command_resumes(
    tune_arguments: list[object], tmp_path: Path
) -> None:
    arguments = [*tune_arguments, "--max-trials", 2, "--store", tmp_path / "s.db"]
    arguments = [str(item) for item in (*arguments, "--out", tmp_path / "out")]
    script = Path(sys.executable).with_name("draftsmith")
    with subprocess.Popen([script, *arguments], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("explore"):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert "interrupted" in rest and "resumes" in rest and "Traceback" not in rest
    [stopped] = json.loads(invoke("show", "--store", tmp_path / "s.db", "--json").stdout)
    assert stopped["state"] == "interrupted"
    result = invoke(*arguments, "--json")
    document = json.loads(result.stdout)
    assert document["resumed"] and document["run"] == stopped["uuid"]


def test_verify_agrees_with_the_bundle(tuned: Tuned) -> None:
    result = invoke("verify", tuned.bundle, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and document["verdict"] == "lossless"
    assert document["counts"] == {"exact": document["num_outputs"]}


def test_verify_decodes_again(tuned: Tuned) -> None:
    result = invoke("verify", tuned.bundle, "--decode", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["lossless"]


def test_changed_bundle_is_refused(tuned: Tuned, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert invoke("export", tuned.bundle, "--out", copy).exit_code == 0
    outputs = copy / "outputs.jsonl"
    outputs.write_text(outputs.read_text().replace("token_ids", "token_idz", 1))
    result = invoke("verify", copy)
    assert result.exit_code == 2 and "outputs.jsonl" in result.stderr


def test_show_lists_the_run_its_trials_and_its_bundle(tuned: Tuned) -> None:
    runs = json.loads(invoke("show", "--store", tuned.store, "--json").stdout)
    assert [run["uuid"] for run in runs] == [tuned.document["run"]]
    one = invoke("show", "latest", "--trials", "--store", tuned.store, "--json")
    document = json.loads(one.stdout)
    assert document["result"]["verdict"] == tuned.document["verdict"]
    assert {trial["stage"] for trial in document["trials"]} >= {"baseline", "explore"}
    bundle = json.loads(invoke("show", tuned.bundle, "--json").stdout)
    assert bundle["config"] == tuned.document["config"]
    for arguments in (("show",), ("show", tuned.document["run"][:8]), ("show", tuned.bundle)):
        text = invoke(*arguments, "--store", tuned.store)
        assert text.exit_code == 0, text.stderr


def test_show_knobs_is_the_space() -> None:
    rows = json.loads(invoke("show", "knobs", "--json").stdout)
    assert {"drafter", "block_size", "exit_layer", "draft_vocab"} <= {row["name"] for row in rows}


def test_export_keeps_the_checksum(tuned: Tuned, tmp_path: Path) -> None:
    out = tmp_path / "winner"
    result = invoke("export", "latest", "--store", tuned.store, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["checksum"] == read_bundle(tuned.bundle).record.checksum
    taken = invoke("export", "latest", "--store", tuned.store, "--out", out)
    assert taken.exit_code == 2 and str(out) in taken.stderr


def test_export_refuses_formats_by_name(tuned: Tuned, tmp_path: Path) -> None:
    result = invoke("export", tuned.bundle, "--format", "vllm", "--out", tmp_path / "x")
    assert result.exit_code == 2 and "'vllm'" in result.stderr and "native" in result.stderr


def test_dry_run_prints_a_plan_and_opens_no_store(
    tune_arguments: list[object], tmp_path: Path
) -> None:
    store = tmp_path / "store.db"
    result = invoke(*tune_arguments, "--dry-run", "--json", "--store", store)
    plan = json.loads(result.stdout)
    assert result.exit_code == 0, result.stderr
    assert plan["drafters"] == ["ngram"] and plan["trials_at_most"] == 1
    assert plan["minutes"]["budget"] == 10 and plan["starting_points"]
    assert not store.exists()


def test_flags_override_the_yaml(tiny: Path, workload: Path, tmp_path: Path) -> None:
    config = tmp_path / "deployment.yaml"
    config.write_text(
        f"target: {{path: {tiny}, dtype: float32}}\nworkload: {{path: {workload}}}\n"
        "regime: {max_tokens: 8}\nbudget: 10m\nmax_trials: 3\n"
    )
    result = invoke("tune", "--config", config, "--max-trials", 2, "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["trials_at_most"] == 2
