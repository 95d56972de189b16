"""``generate``, ``verify`` on files, and ``bench``, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Tuned, invoke

NGRAM = '{"drafter": "ngram", "block_size": 3, "match_min": 1}'


@pytest.fixture(scope="module")
def answer(tiny: Path) -> dict:
    result = invoke(
        *("generate", "once upon a time", "--target", tiny, "--dtype", "float32", "--json"),
        *("--max-tokens", 12, "--knobs", NGRAM, "--check"),
    )
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def judged(rows: list[dict], tiny: Path, folder: Path, *options: object) -> tuple[int, dict]:
    path = folder / "outputs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = invoke(*("verify", path, "--target", tiny, "--dtype", "float32", "--json"), *options)
    return result.exit_code, json.loads(result.stdout)


def test_generate_equals_stock_and_counts_steps(answer: dict) -> None:
    assert answer["equals_stock"] is True
    assert answer["tokens_per_step"] == pytest.approx(
        len(answer["token_ids"]) / answer["num_steps"]
    )


def test_generate_prints_the_text_alone_on_stdout(tiny: Path, answer: dict) -> None:
    result = invoke(
        *("generate", "once upon a time", "--target", tiny, "--dtype", "float32"),
        *("--max-tokens", 12),
    )
    assert result.stdout == answer["text"] + "\n"
    assert "tokens per step" in result.stderr


def test_the_form_of_the_weights_changes_no_token(tiny: Path) -> None:
    asked = ("generate", "once upon a time", "--target", tiny, "--max-tokens", 12, "--json")
    plain, packed = (invoke(*asked, "--weights", form) for form in ("plain", "auto"))
    assert plain.exit_code == packed.exit_code == 0, plain.stderr + packed.stderr
    assert json.loads(plain.stdout)["token_ids"] == json.loads(packed.stdout)["token_ids"]


def test_generate_with_a_bundle_takes_its_target(tuned: Tuned) -> None:
    result = invoke("generate", "once upon", "--bundle", tuned.bundle, "--check", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["equals_stock"] is True


def test_generate_output_passes_verify(answer: dict, tiny: Path, tmp_path: Path) -> None:
    code, document = judged([answer], tiny, tmp_path)
    assert (code, document["verdict"]) == (0, "lossless")


def test_wrong_token_fails_with_its_position(answer: dict, tiny: Path, tmp_path: Path) -> None:
    wrong = dict(answer, token_ids=list(answer["token_ids"]))
    wrong["token_ids"][4] = (wrong["token_ids"][4] + 7) % 64
    code, document = judged([answer, wrong], tiny, tmp_path)
    assert (code, document["verdict"]) == (1, "lossy")
    good, bad = document["outputs"]
    assert good["judgement"] == "exact"
    assert (bad["judgement"], bad["position"]) == ("divergent", 4)
    assert bad["expected"] == answer["token_ids"][4]


def test_early_stop_fails(answer: dict, tiny: Path, tmp_path: Path) -> None:
    short = dict(answer, token_ids=answer["token_ids"][:-2])
    code, document = judged([short], tiny, tmp_path)
    assert (code, document["outputs"][0]["judgement"]) == (1, "divergent")


def test_prefix_without_a_stop_reason_is_judged_by_its_tokens(
    answer: dict, tiny: Path, tmp_path: Path
) -> None:
    row = {"prompt_ids": answer["prompt_ids"], "token_ids": answer["token_ids"][:5]}
    assert judged([row], tiny, tmp_path)[0] == 0


def test_an_output_longer_than_the_default_limit_is_not_cut_by_it(
    tiny: Path, tmp_path: Path
) -> None:
    """The default of max_tokens is not the limit that another engine ran with; --max-tokens is."""
    made = invoke(
        *("generate", "hello there", "--raw", "--target", tiny, "--dtype", "float32", "--json"),
        *("--temperature", 1.0, "--seed", 3, "--max-tokens", 400),
    )
    row = json.loads(made.stdout)
    assert row["stop_reason"] == "stop_token" and len(row["token_ids"]) > 128
    row["sampling"] = {"temperature": 1.0, "seed": row["sampling"]["seed"], "max_tokens": None}
    assert judged([row], tiny, tmp_path)[0] == 0
    assert judged([row], tiny, tmp_path, "--max-tokens", 128)[0] == 1


def test_a_prompt_that_nearly_fills_the_positions_is_verified(tiny: Path, tmp_path: Path) -> None:
    made = invoke(
        *("generate", "a" * 2040, "--raw", "--target", tiny, "--dtype", "float32", "--json"),
        *("--max-tokens", 3),
    )
    assert judged([json.loads(made.stdout)], tiny, tmp_path)[0] == 0


def test_seeded_sampling_is_verified_with_its_seed(tiny: Path, tmp_path: Path) -> None:
    made = invoke(
        *("generate", "once upon a time", "--target", tiny, "--dtype", "float32", "--json"),
        *("--max-tokens", 12, "--temperature", 0.9, "--seed", 5, "--knobs", NGRAM, "--check"),
    )
    row = json.loads(made.stdout)
    assert row["equals_stock"] is True
    assert judged([row], tiny, tmp_path)[0] == 0
    other = dict(row, sampling=dict(row["sampling"], seed=6))
    assert judged([other], tiny, tmp_path)[0] == 1


def test_bench_compares_with_stock(tiny: Path, workload: Path) -> None:
    result = invoke(
        *("bench", "--target", tiny, "--workload", workload, "--dtype", "float32", "--json"),
        *("--limit", 4, "--max-tokens", 8, "--knobs", NGRAM, "--knobs", '{"drafter": "suffix"}'),
    )
    document = json.loads(result.stdout)
    assert result.exit_code == 0, result.stderr
    assert [row["config"]["drafter"] for row in document["configurations"]] == ["ngram", "suffix"]
    for row in document["configurations"]:
        assert row["lossless"] and row["num_exact"] == 4 and row["ratio"]["ratio"] > 0


def test_bench_takes_a_configuration_of_each_drafter(tiny: Path, workload: Path) -> None:
    result = invoke(
        *("bench", "--target", tiny, "--workload", workload, "--dtype", "float32"),
        *("--limit", 2, "--max-tokens", 6),
    )
    assert result.exit_code == 0, result.stderr
    assert all(name in result.stdout for name in ("ngram", "suffix", "recycle", "early_exit"))
