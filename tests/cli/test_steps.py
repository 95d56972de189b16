"""``bench --steps``: the table of verify steps and the parts of a decoding step, JSON and drawn."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import invoke

NGRAM = '{"drafter": "ngram", "block_size": 3, "match_min": 1}'


def test_steps_come_with_the_comparison(tiny: Path, workload: Path) -> None:
    asked = ("bench", "--target", tiny, "--workload", workload, "--dtype", "float32")
    asked = (*asked, "--threads", 1, "--limit", 2, "--max-tokens", 6, "--knobs", NGRAM, "--steps")
    result = invoke(*asked, "--json")
    assert result.exit_code == 0, result.stderr
    steps = json.loads(result.stdout)["steps"]
    shapes = {(cost["batch"], cost["rows"]) for cost in steps["table"]}
    assert shapes == {(b, n) for b in (1, 2, 4, 8) for n in (1, 2, 4, 8, 16, 32, 64)}
    assert all(cost["layers_s"] > 0 and cost["head_s"] > 0 for cost in steps["table"])
    assert len(steps["parts"]) == 2 and steps["parts"]["stock"]["draft_s"] == 0
    drawn = invoke(*asked)
    assert drawn.exit_code == 0, drawn.stderr
    assert "verify step, ms" in drawn.stdout and "host share" in drawn.stdout
    assert "GB/s" in drawn.stdout
