"""Faults planted in the running engine: token forcing or the row test must kill every one, and
nothing may be said against an engine without a fault. Short form of scripts/evidence_mutants.py.
"""

from __future__ import annotations

from functools import cache

import pytest
from mutant import SPECULATION, VOCAB, Mutant
from mutants import (
    MUTANTS,
    Row,
    Trial,
    clean_verdicts,
    model_of,
    recorded_rows,
    row_is_plain,
    run_config,
    table,
    try_mutant,
)

from draftsmith.engine.forcing import EmittedOutput, force_outputs
from draftsmith.engine.types import Request, Sampling

OUTPUTS = 6  # a mutant; the long form runs 200
ROWS = 30

# The corruptions that must be among the mutants, whatever else is.
REQUIRED = (
    *("wrong token", "dropped token", "duplicated bonus", "early stop", "late stop"),
    *("positions of drafts", "stale row", "mask hole: parent", "swapped siblings"),
)


@cache
def trial_of(mutant: Mutant) -> Trial:
    return try_mutant(mutant, outputs=OUTPUTS, rows=ROWS)


def test_there_are_mutants_of_every_required_kind() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 24
    assert set(REQUIRED) <= set(names)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant) -> None:
    trial = trial_of(mutant)
    assert trial.num_divergent == trial.num_changed, "a changed output was not called divergent"
    assert trial.num_wrong_position == 0, "a verdict names another position than the first wrong"
    assert trial.num_alarms == 0, "an unchanged output was not called exact"
    assert trial.killer is not None


def test_table_names_a_killer_for_every_mutant() -> None:
    text = table([trial_of(mutant) for mutant in MUTANTS])
    print(f"\n{text}")
    lines = text.splitlines()
    assert len(lines) == 1 + len(MUTANTS)
    assert all(line.endswith(("token forcing", "row test")) for line in lines[1:])


def test_an_engine_without_a_fault_survives() -> None:
    """The harness itself does not kill."""
    clean = Mutant("none", "no fault", lambda _: None, ("exit-static", "draft-model"))
    trial = try_mutant(clean, outputs=4, rows=60)
    assert trial.killer is None
    assert (trial.num_changed, trial.num_wrong_rows) == (0, 0)
    assert trial.num_rows > 30
    assert "SURVIVES" in table([trial])


def test_no_alarm_on_clean_outputs() -> None:
    """Every drafter, greedy and sampled, fp32 and bf16."""
    verdicts = clean_verdicts(1)
    assert len(verdicts) == 4 * len(SPECULATION)
    assert [verdict for verdict in verdicts if verdict.judgement != "exact"] == []


@pytest.mark.parametrize("name", ["suffix-tree", "recycle-tree", "exit-dynamic", "scripted-tree"])
def test_every_verified_row_equals_a_plain_forward(name: str) -> None:
    """Ragged trees in one batch, a request joining when another ends."""
    model = model_of()
    requests = [
        Request(
            request_id=str(i),
            prompt_ids=tuple((7 * i + 3 * j) % (5 + 9 * i) + 2 for j in range(4 + 6 * i)),
            sampling=Sampling(max_tokens=12 - 3 * i, ignore_eos=True),
        )
        for i in range(3)
    ]
    assert max(max(request.prompt_ids) for request in requests) < VOCAB
    seen: list[Row] = []
    with recorded_rows(seen):
        done = run_config(model, requests, name, 2)
    assert len(seen) > sum(len(one.token_ids) for one in done)
    assert all(row_is_plain(model, row) for row in seen[:150])
    outputs = [EmittedOutput(one.request_id, one.token_ids, one.stop_reason) for one in done]
    verdicts = force_outputs(model, requests, outputs)
    assert [verdict.judgement for verdict in verdicts] == ["exact"] * 3
