"""A SQLite file whose content was changed by somebody else: one message, naming the place."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from draftsmith.store.errors import StoreEnvironmentError, StoreError, StoreInputError
from draftsmith.store.migrations.upgrade import open_database, open_existing
from draftsmith.store.owners import this_process
from draftsmith.store.records import NewTrial, StoredReference, TrialOutcome
from draftsmith.store.repository import Repository


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A store with two runs, one of them with a trial and everything that a run keeps."""
    path = tmp_path / "store.db"
    with closing(open_database(path)) as database:
        repository = Repository(database)
        repository.open_run({"target": "first"}, {})
        run = repository.open_run({"target": "second"}, {"space": [1]})
        owner = this_process()
        repository.claim_run(run.id, owner, 60)
        repository.add_trials(
            run.id, [NewTrial(config={"k": k, "fill": "x" * 99}) for k in range(40)]
        )
        trial = repository.lease(run.id, owner.key, 60)
        assert trial is not None
        repository.finish(trial.id, owner.key, TrialOutcome(state="done", score=1.0, feasible=True))
        repository.save_artifact(run.id, "costs", {"step_s": 0.5})
        reference = StoredReference(request_id="r", token_ids=(1, 2), stop_reason="length")
        repository.save_references(run.id, [reference])
    return path


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


def read_all(path: Path) -> None:
    """Every reading verb, over everything that is there."""
    with closing(open_existing(path)) as database:
        repository = Repository(database)
        for run in repository.runs():
            repository.rivals(run.id)
            repository.counts(run.id)
            repository.leaderboard(run.id)
            repository.load_artifact(run.id, "costs")
            repository.load_references(run.id)
            repository.bundles(run.id)
            for trial in repository.trials(run.id):
                repository.timings(trial.id)
                repository.outputs(trial.id)


@pytest.mark.parametrize(
    ("column", "value", "shown"),
    [
        ("settings", '{"space": [', r"'\{\"space\": \['"),
        ("settings", "[1]", r"\[1\]"),
        ("verdict", "{bro", "'{bro'"),
        ("owner", "not json", "'not json'"),
        ("owner", '{"pid": "x"}', r"\{'pid': 'x'\}"),
        ("created_at", "yesterday", "'yesterday'"),
        ("state", b"\x01", r"b'\\x01'"),
    ],
)
def test_a_broken_value_of_a_run_is_named(
    filled: Path, column: str, value: object, shown: str
) -> None:
    with closing(open_existing(filled)) as database:
        uuid = Repository(database).run("latest").uuid
    change(filled, f"UPDATE draftsmith_runs SET {column} = ? WHERE id = 2", value)
    place = rf"draftsmith_runs, id 2 \(run {uuid}\): its {column} holds {shown}"
    with pytest.raises(StoreEnvironmentError, match=rf"file is damaged\. Fix: restore.*{place}"):
        read_all(filled)
    with closing(open_database(filled)) as database:
        repository = Repository(database)
        assert repository.run(1).deployment.description == {"target": "first"}
        with pytest.raises(StoreEnvironmentError, match=place):
            repository.run(2)


@pytest.mark.parametrize(
    ("table", "column", "place"),
    [
        ("deployments", "description", "draftsmith_deployments, id 2"),
        ("trials", "config", "draftsmith_trials, id 1"),
        ("trials", "score", "draftsmith_trials, id 1"),
        ("artifacts", "value", "draftsmith_artifacts, run_id 2, name costs"),
        ("references", "token_ids", "draftsmith_references, run_id 2, request_id r"),
    ],
)
def test_a_broken_value_of_any_table_is_named(
    filled: Path, table: str, column: str, place: str
) -> None:
    change(filled, f"UPDATE draftsmith_{table} SET {column} = '{{bro'")
    with pytest.raises(StoreEnvironmentError, match=f"{place}: its {column} holds '{{bro'"):
        read_all(filled)


def test_text_that_is_not_utf8_is_damage(filled: Path) -> None:
    change(filled, "UPDATE draftsmith_runs SET stage = CAST(x'ff41ff' AS TEXT)")
    with pytest.raises(StoreEnvironmentError, match="file is damaged. Fix: restore"):
        read_all(filled)


def test_a_missing_table_is_said_with_a_fix(filled: Path) -> None:
    change(filled, "DROP TABLE draftsmith_bundles")
    with pytest.raises(StoreEnvironmentError, match=r"lacks a table.*Fix: restore.*no such table"):
        read_all(filled)


@pytest.mark.parametrize("first", range(0, 997, 83))
def test_flipped_bytes_end_in_the_store_s_own_errors(filled: Path, first: int) -> None:
    content = bytearray(filled.read_bytes())
    for place in range(first, len(content), 997):
        content[place] ^= 0xFF
    filled.write_bytes(content)
    with pytest.raises(StoreError, match="Fix: ") as failure:
        read_all(filled)
    damaged = isinstance(failure.value, StoreEnvironmentError)
    assert damaged or isinstance(failure.value, StoreInputError) and first < 100, failure.value
