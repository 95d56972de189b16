"""Every bad input: a message that names value, limit and fix; exit 2 or 3; no traceback."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Tuned, invoke


def refused(code: int, *arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == code, result.stderr
    assert "Traceback" not in result.stderr and result.stdout == ""
    return result.stderr


def tune(*arguments: object) -> tuple[object, ...]:
    return ("tune", "--in-process", "--dtype", "float32", "--max-tokens", 8, *arguments)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_missing_model(workload: Path) -> None:
    message = refused(2, *tune("--target", "no/such/model", "--workload", workload))
    assert "no/such/model" in message and "smollm2" in message


def test_no_target(workload: Path) -> None:
    assert "--target" in refused(2, *tune("--workload", workload))
    assert "--target" in refused(2, "generate", "hello")


def test_missing_workload(tiny: Path) -> None:
    message = refused(2, *tune("--target", tiny, "--workload", "nothing.jsonl"))
    assert "nothing.jsonl" in message and "does not exist" in message


@pytest.mark.parametrize("content", ["", "\n  \n"])
def test_empty_workload(tiny: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "w.jsonl").write_text(content)
    assert "no prompts" in refused(2, *tune("--target", tiny, "--workload", "w.jsonl"))


def test_broken_workload_names_its_line(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text('{"prompt": "a"}\n\n{bad\n')
    message = refused(2, *tune("--target", tiny, "--workload", "w.jsonl"))
    assert "w.jsonl" in message and "line 3" in message


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ('{"drafter": "ngram", "blok_size": 4}', "block_size"),
        ('{"drafter": "ngram", "block_size": 99}', "16"),
        ('{"drafter": "ngramm"}', "ngram"),
        ("{not json", "JSON"),
        ('{"drafter": ' + "[" * 200_000, "recursion"),
        ("", "--knobs is empty"),
        ('{"block_size": 8}', "without a drafter"),
        ('{"drafter": "ngram", "block_size": 2, "block_size": 3}', "'block_size' stands there twi"),
        ('{"drafter": "ngram", "block_size": ' + "9" * 400 + "}", "of 400 digits"),
        ('{"drafter": "ngram", "block_size": ' + "9" * 5000 + "}", "of 5000 digits"),
        ('{"drafter": "scripted"}', "Known: draft_model, early_exit, ngram, none, recycle, suffix"),
        ("missing.json", "missing.json"),
    ],
    ids=lambda value: value[:60],
)
def test_unknown_or_wrong_knob(tiny: Path, knobs: str, said: str) -> None:
    message = refused(2, "generate", "hello", "--target", tiny, "--knobs", knobs)
    assert said in message and "set_int_max_str_digits" not in message


@pytest.mark.parametrize(
    ("row", "flags", "said"),
    [
        ({"prompt_ids": [5, 99999]}, (), ("line 11", "99999", "64")),
        ({"prompt": "a" * 500}, ("--max-tokens", 2000), ("2000", "2048", "max_tokens")),
        ({"prompt": "a"}, ("--temperature", 1, "--top-k", 65), ("top_k is 65", "64")),
    ],
)
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_requests_that_the_target_cannot_take(
    command: str, row: dict, flags: tuple, said: tuple, tiny: Path, tmp_path: Path
) -> None:
    rows = [*({"prompt": f"once upon a time {index}"} for index in range(10)), row]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = tune() if command == "tune" else ("bench",)
    message = refused(2, *start, "--target", tiny, "--workload", "w.jsonl", *flags)
    assert all(part in message for part in said), message


@pytest.mark.parametrize("command", ["bench", "tune", "generate"])
def test_damaged_weights(command: str, tiny: Path, workload: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    arguments: dict[str, tuple[object, ...]] = {
        "bench": ("bench", "--workload", workload),
        "tune": (*tune("--workload", workload), "--dry-run"),
        "generate": ("generate", "hello"),
    }
    message = refused(2, *arguments[command], "--target", "damaged")
    assert "damaged/model.safetensors" in message and "copy" in message


def test_out_that_is_a_file_is_refused_before_anything_is_measured(
    tiny: Path, workload: Path, tmp_path: Path
) -> None:
    (tmp_path / "taken").write_text("mine")
    message = refused(
        2, *tune("--target", tiny, "--workload", workload, "--out", tmp_path / "taken" / "runs")
    )
    assert str(tmp_path / "taken") in message and "baseline" not in message


@pytest.mark.parametrize("flags", [("--run", ""), ("--run", "0123abcd", "--fresh")])
def test_run_that_names_none_or_contradicts_fresh(flags: tuple, tiny: Path, workload: Path) -> None:
    message = refused(2, *tune("--target", tiny, "--workload", workload, *flags))
    assert "--run" in message and "--fresh" in message


def test_incumbent_whose_draft_model_is_missing(tiny: Path, workload: Path, tmp_path: Path) -> None:
    content = {"method": "draft_model", "model": "no/such/draft", "num_speculative_tokens": 3}
    (tmp_path / "today.json").write_text(json.dumps(content))
    arguments = tune("--target", tiny, "--workload", workload, "--incumbent", "today.json")
    for last in ((), ("--dry-run",)):
        assert "no/such/draft" in refused(2, *arguments, *last)


def test_packed_weights_of_another_type(tiny: Path, workload: Path) -> None:
    form = ("--target", tiny, "--dtype", "float32", "--weights", "bf12")
    for arguments in (("generate", "x", *form), ("bench", "--workload", workload, *form)):
        message = refused(2, *arguments)
        assert "bf12" in message and "float32" in message and "weights=plain" in message
    message = refused(2, "tune", "--workload", workload, "--dry-run", *form)
    assert "bf12" in message and "float32" in message


def test_more_threads_than_any_machine_has(tiny: Path) -> None:
    assert "1024" in refused(2, "generate", "x", "--target", tiny, "--threads", 100_000)


def test_sampling_options_do_not_change_a_bundle(tuned: Tuned) -> None:
    message = refused(2, "verify", tuned.bundle, "--top-k", 3)
    assert "--top-k" in message and "bundle" in message


def test_unknown_yaml_key(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("target: x\nworkload: y\nbudgett: 10m\n")
    message = refused(2, "tune", "--config", "d.yaml")
    assert "budgett" in message and "budget" in message


def test_unknown_drafter(tiny: Path, workload: Path) -> None:
    message = refused(
        2, *tune("--target", tiny, "--workload", workload, "--drafters", "ngram,mega")
    )
    assert "mega" in message


@pytest.mark.parametrize("budget", ["0", "-5m", "soon", "1s"])
def test_budget_that_is_none(tiny: Path, workload: Path, budget: str) -> None:
    arguments = tune("--target", tiny, "--workload", workload, f"--budget={budget}")
    message = refused(2, *arguments)
    assert budget in message and "10m" in message


def test_budget_too_small_for_this_deployment_names_the_minimum(
    workload: Path, tmp_path: Path
) -> None:
    from tests.support.tinymodels import save_tiny

    slow = save_tiny(tmp_path / "slow", num_layers=16)
    result = invoke(
        *("tune", "--in-process", "--target", slow, "--workload", workload, "--dtype", "float32"),
        *("--budget", "10s", "--max-tokens", 1000, "--store", "s.db"),
    )
    assert result.exit_code == 2 and "smallest run" in result.stderr, result.stderr
    assert json.loads(invoke("show", "--store", "s.db", "--json").stdout)[0]["state"] == "failed"


def test_wrong_vocabulary(tiny: Path, workload: Path, tmp_path: Path) -> None:
    from tests.support.tinymodels import save_tiny

    other = save_tiny(tmp_path / "other", vocab_size=48)
    arguments = ("--target", tiny, "--workload", workload, "--draft-model", other)
    message = refused(2, *tune(*arguments))
    assert "48" in message and "64" in message and "vocabulary" in message


@pytest.mark.parametrize("command", ["tune", "bench", "generate"])
def test_draft_model_with_too_few_positions(
    command: str, tiny: Path, workload: Path, tmp_path: Path
) -> None:
    from tests.support.tinymodels import save_tiny

    small = save_tiny(tmp_path / "small", num_layers=1, max_position_embeddings=16)
    arguments: dict[str, tuple[object, ...]] = {
        "tune": (*tune("--workload", workload), "--draft-model", small),
        "bench": ("bench", "--workload", workload, "--draft-model", small),
        "generate": (
            *("generate", "once upon a time", "--raw", "--knobs"),
            json.dumps({"drafter": "draft_model", "draft_model": str(small)}),
        ),
    }
    message = refused(2, *arguments[command], "--target", tiny)
    for part in ("small", "16 positions", "2048", "max_tokens"):
        assert part in message


def test_read_only_store_is_left_as_it_was(tuned: Tuned, tune_arguments: list[object]) -> None:
    before = tuned.store.read_bytes()
    message = refused(3, *tune_arguments, "--fresh", "--store", f"file:{tuned.store}?mode=ro")
    assert "read-only" in message and "mode=ro" in message
    assert tuned.store.read_bytes() == before


def test_full_store_stays_intact(
    tuned: Tuned, tune_arguments: list[object], tmp_path: Path
) -> None:
    store = tmp_path / "full.db"
    with sqlite3.connect(tuned.store) as source, sqlite3.connect(store) as database:
        source.backup(database)
    with sqlite3.connect(store, isolation_level=None) as database:
        database.execute("VACUUM")  # no free page left over to write to
        [pages] = database.execute("PRAGMA page_count").fetchone()
    url = f"sqlite:///{store}?max_page_count={pages}"
    for seed in range(3, 23):  # what a run writes may still fit into pages begun before
        arguments = [str(part) for part in (*tune_arguments, "--store", url, "--seed", seed)]
        result = invoke(*arguments, "--fresh")
        if result.exit_code != 0:
            break
    assert result.exit_code == 3, result.stderr
    message = result.stderr
    assert "max_page_count" in message and "space" in message
    with sqlite3.connect(store) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    runs = json.loads(invoke("show", "--store", store, "--json").stdout)
    assert tuned.document["run"] in {run["uuid"] for run in runs}


def test_store_that_is_missing_is_not_made_by_reading(tmp_path: Path) -> None:
    assert "no store at" in refused(2, "show", "--store", "nothing.db")
    assert not (tmp_path / "nothing.db").exists()


def test_unknown_run(tuned: Tuned) -> None:
    assert "nosuchrun" in refused(2, "show", "nosuchrun", "--store", tuned.store)


def test_absent_device(tiny: Path, workload: Path) -> None:
    arguments = ("--target", tiny, "--workload", workload, "--device", "cuda:63")
    assert "cuda:63" in refused(3, *tune(*arguments))


def test_contradicting_options(tiny: Path, workload: Path, tuned: Tuned) -> None:
    arguments = ("--target", tiny, "--workload", workload, "--ray-address", "auto")
    assert "--ray-address" in refused(2, *tune(*arguments))
    message = refused(2, "generate", "x", "--bundle", tuned.bundle, "--knobs", "{}")
    assert "--bundle" in message and "--knobs" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no rows"),
        ("{oops\n", "line 1"),
        ('{"prompt": "a"}\n', "token_ids"),
        ('{"prompt": "a", "token_ids": []}\n', "empty"),
        ('{"prompt": "a", "token_ids": [4], "sampling": {"heat": 1}}\n', "heat"),
        ('{"prompt": "a", "token_ids": [4], "stop_reason": "tired"}\n', "tired"),
        ('{"token_ids": [4]}\n', "prompt"),
        ('{"prompt": "a", "token_ids": [4], "temperature": "hot"}\n', "temperature is 'hot'"),
        ('{"prompt": "a", "token_ids": [4], "max_tokens": 5.5}\n', "max_tokens is 5.5"),
        ('{"prompt": "a", "token_ids": [4], "sampling": [1]}\n', "sampling is [1]"),
        ('{"prompt": "a", "token_ids": [4], "stop_strings": [1]}\n', "stop_strings is [1]"),
        ('{"prompt": "a", "token_ids": [4], "stop_token_ids": [64]}\n', "line 1: stop_token_ids"),
        ('{"prompt": "a", "token_ids": [4], "id": "\\ud800"}\n', "surrogate"),
        ('{"prompt": "a", "text": "\\ud800"}\n', "surrogate"),
        ('{"prompt_ids": [64], "token_ids": [4]}\n', "line 1: request line 1 has token id 64"),
        ("[" * 200_000, "recursion"),
    ],
    ids=lambda value: value[:60],
)
def test_broken_outputs_file(tiny: Path, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "o.jsonl").write_text(content)
    assert said in refused(2, "verify", "o.jsonl", "--target", tiny)
