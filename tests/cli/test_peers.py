"""``bench --peer`` and ``--steps`` on a tiny model, with stand-ins for the other engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import invoke
from tests.support.fakepeer import HONEST, fake_python

NGRAM = '{"drafter": "ngram", "block_size": 3, "match_min": 1}'
SLOW_S = 1000.0  # of a stand-in: far slower than anything here


def bench(tiny: Path, workload: Path, *options: object) -> tuple[dict[str, Any], str]:
    result = invoke(
        *("bench", "--target", tiny, "--workload", workload, "--dtype", "float32", "--json"),
        *("--threads", 1, "--knobs", NGRAM, *options),
    )
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def peers_running() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if any("serve.py" in word for word in child.cmdline())
    ]


def test_transformers_beside_us_answers_with_the_same_tokens(tiny: Path, workload: Path) -> None:
    document, stderr = bench(
        *(tiny, workload, "--limit", 4, "--max-tokens", 8, "--peer", "transformers"),
        *("--peer", 'transformers:{"prompt_lookup_num_tokens": 3}', "--steps"),
    )
    plain, lookup = document["peers"]
    assert plain["name"] == "transformers"
    assert lookup["settings"] == {"prompt_lookup_num_tokens": 3}
    [ngram] = document["configurations"]
    for row in (plain, lookup):
        assert (row["failure"], row["num_outputs"], row["num_equal"]) == ("", 4, 4)
        assert set(row["ours_over_it"]) == {"stock", ngram["name"]}
        assert row["ours_over_it"]["stock"]["num_units"] == 4
        assert row["decode_tokens_per_s"] > 0 and row["prefill_s"] > 0
        assert row["versions"]["transformers"] in stderr
    assert len(document["steps"]["table"]) == 4 * 7
    assert set(document["steps"]["parts"]) == {"stock", ngram["name"]}
    assert peers_running() == []


def test_speeds_count_tokens_also_where_outputs_differ_in_length(
    tiny: Path, workload: Path, tmp_path: Path
) -> None:
    """The stand-in answers two of our eight tokens in so many seconds."""
    slow = f"""
    if order["op"] == "load":
        answer({{"versions": {{"fake": "1"}}, "note": "slow on purpose"}})
    else:
        answer({{
            "outputs": [[2, 3] for p in order["prompts"]],
            "seconds": {SLOW_S},
            "prefill_s": None,
        }})
    """
    python = fake_python(tmp_path / "python", slow)
    document, _ = bench(
        *(tiny, workload, "--limit", 3, "--max-tokens", 8),
        *("--peer", "vllm", "--peer-python", f"vllm={python}"),
    )
    [row] = document["peers"]
    assert row["tokens_per_s"] == pytest.approx(2 / SLOW_S)
    assert (row["decode_tokens_per_s"], row["prefill_s"], row["num_equal"]) == (None, None, 0)
    ratio = row["ours_over_it"]["stock"]["ratio"]
    assert ratio == pytest.approx(document["stock"]["tokens_per_s"] / row["tokens_per_s"])


def test_absent_and_failing_peers_are_rows_with_their_reason(
    tiny: Path, workload: Path, tmp_path: Path
) -> None:
    absent = fake_python(tmp_path / "absent", "answer({'absent': ['vllm']})")
    dying = "if count > 3:\n    print('no more memory', file=sys.stderr); sys.exit(9)\n"
    failing = fake_python(tmp_path / "failing", dying + HONEST)
    result = invoke(
        *("bench", "--target", tiny, "--workload", workload, "--dtype", "float32"),
        *("--threads", 1, "--knobs", NGRAM, "--limit", 4, "--max-tokens", 6),
        *("--peer", "vllm", "--peer-python", f"vllm={absent}"),
        *("--peer", "llama-cpp-python", "--peer-python", f"llama-cpp-python={failing}"),
    )
    assert result.exit_code == 0, result.stderr
    assert "not installed: vllm" in result.stdout
    assert "exit code 9" in result.stdout and "no more memory" in result.stdout
    assert "ours over the peer" not in result.stdout  # there is none to compare with


def test_batches_reach_a_peer_whole(tiny: Path, workload: Path, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    body = HONEST + f"open({str(log)!r}, 'a').write(line)\n"
    python = fake_python(tmp_path / "python", body)
    document, _ = bench(
        *(tiny, workload, "--limit", 6, "--max-tokens", 4, "--concurrency", 2),
        *("--peer", "vllm", "--peer-python", f"vllm={python}"),
    )
    load, _, *asked = [json.loads(line) for line in log.read_text().splitlines()]
    assert load["concurrency"] == 2
    assert [len(order["prompts"]) for order in asked] == [4, 2]  # as ours: groups of twice as many
    assert document["peers"][0]["num_outputs"] == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--peer", "tgi"), "peer 'tgi' is not known"),
        (("--peer", "transformers", "--temperature", 0.7), "compared on plain greedy decoding"),
        (("--concurrency", 8), "at least 24 are needed"),
    ],
)
def test_wrong_options_are_refused(
    tiny: Path, workload: Path, options: tuple[object, ...], message: str
) -> None:
    result = invoke(
        *("bench", "--target", tiny, "--workload", workload, "--dtype", "float32", *options)
    )
    assert result.exit_code == 2
    assert message in result.stderr
