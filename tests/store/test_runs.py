"""Runs: open, resume, claim, finish, and what they keep, on each kind of database."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from draftsmith.store.errors import RunBusyError, StoreInputError
from draftsmith.store.owners import is_gone, this_process
from draftsmith.store.records import Budget, BundleRecord, NewTrial, RunRecord, StoredReference
from draftsmith.store.repository import Repository
from tests.support.clock import FakeClock

DEPLOYMENT = {"target": "tiny", "temperature": 0.1 + 0.2}
SETTINGS = {"space": {"block_size": [2, 4]}}


def test_unfinished_run_is_resumed_and_a_done_one_is_not(repository: Repository) -> None:
    first = repository.open_run(DEPLOYMENT, SETTINGS, seed=7, budget=Budget(trials=10))
    assert not first.resumed and first.state == "running"
    same = repository.open_run({"temperature": 0.3, "target": "tiny"}, SETTINGS, seed=7)
    assert (same.id, same.resumed, same.budget) == (first.id, True, Budget(trials=10))
    repository.finish_run(first.id, "interrupted")
    assert repository.open_run(DEPLOYMENT, SETTINGS, seed=7).id == first.id
    repository.finish_run(first.id, "done", {"verdict": "winner"})
    after = repository.open_run(DEPLOYMENT, SETTINGS, seed=7)
    assert after.id != first.id and not after.resumed
    assert after.deployment == first.deployment


def test_b31_changed_space_or_seed_is_another_run(repository: Repository) -> None:
    """B31: [2, 4] then [2, 4, 8] is a new run, not a mixture."""
    first = repository.open_run(DEPLOYMENT, SETTINGS, seed=7)
    wider = repository.open_run(DEPLOYMENT, {"space": {"block_size": [2, 4, 8]}}, seed=7)
    seeded = repository.open_run(DEPLOYMENT, SETTINGS, seed=8)
    fresh = repository.open_run(DEPLOYMENT, SETTINGS, seed=7, resume=False)
    assert len({run.id for run in (first, wider, seeded, fresh)}) == 4
    assert repository.open_run(DEPLOYMENT, SETTINGS, seed=7).id == fresh.id, "the newest"


def test_b31_resuming_a_named_run_with_a_changed_space_says_what_changed(
    repository: Repository,
) -> None:
    """B31: by name there is no silent new run."""
    run = repository.open_run(DEPLOYMENT, SETTINGS, seed=7)
    repository.finish_run(run.id, "done")
    assert repository.open_run(DEPLOYMENT, SETTINGS, seed=7, resume=run.uuid).id == run.id
    with pytest.raises(
        StoreInputError, match=r"settings\.space\.block_size was \[2,4\], is \[2,4,8\]"
    ):
        changed = {"space": {"block_size": [2, 4, 8]}}
        repository.open_run(DEPLOYMENT, changed, seed=7, resume=run.uuid)
    with pytest.raises(StoreInputError, match=r'deployment\.target was "tiny", is "big"'):
        repository.open_run({**DEPLOYMENT, "target": "big"}, SETTINGS, seed=7, resume=run.uuid)
    with pytest.raises(StoreInputError, match="seed was 7, is 8"):
        repository.open_run(DEPLOYMENT, SETTINGS, seed=8, resume=run.uuid)
    with pytest.raises(StoreInputError, match="no run 'nope'"):
        repository.open_run(DEPLOYMENT, SETTINGS, seed=7, resume="nope")


def test_b31_what_changed_is_named_leaf_by_leaf_and_cut_to_where_it_differs(
    repository: Repository,
) -> None:
    long = "/models/" + "m" * 100
    sampling = {"temperature": 0, "top_k": None}
    deployment = {"regime": {"concurrency": 1, "sampling": sampling}, "path": f"{long}/a", "x": {}}
    run = repository.open_run(deployment, SETTINGS)
    changed = {
        "regime": {"concurrency": 1, "sampling": {**sampling, "temperature": 0.7}},
        "path": f"{long}/b",
        "y": (1,),
    }
    with pytest.raises(StoreInputError) as failure:
        repository.open_run(changed, SETTINGS, resume=run.uuid)
    said = str(failure.value)
    assert "regime.sampling.temperature was 0, is 0.7" in said
    assert "deployment.x was {}, is absent" in said and "deployment.y was absent, is [1]" in said
    assert 'm/a", is ...' in said and 'm/b"' in said
    assert not any(same in said for same in ("concurrency", "top_k", "settings"))


def test_a_run_is_named_by_uuid_beginning_or_latest(repository: Repository) -> None:
    first = repository.open_run(DEPLOYMENT, SETTINGS)
    second = repository.open_run({"target": "other"}, SETTINGS)
    assert repository.run(first.uuid[:13]).id == first.id
    assert repository.run("latest").id == second.id
    assert repository.open_run(DEPLOYMENT, SETTINGS, resume=first.uuid[:13]).id == first.id
    with pytest.raises(StoreInputError, match=r"deployment\.target was \"other\", is \"tiny\""):
        repository.open_run(DEPLOYMENT, SETTINGS, resume="latest")
    for nobody in ("", "%", "no-such"):
        with pytest.raises(StoreInputError, match=f"no run '{nobody}'"):
            repository.run(nobody)
    beginnings = {first.uuid[0], second.uuid[0]}
    while len(beginnings) > 1 and len(beginnings) == len(repository.runs()):
        beginnings.add(repository.open_run(DEPLOYMENT, SETTINGS, resume=False).uuid[0])
    shared = next(b for b in beginnings if sum(r.uuid[0] == b for r in repository.runs()) > 1)
    with pytest.raises(StoreInputError, match=f"'{shared}' begins several runs, {shared}.*and"):
        repository.run(shared)


@pytest.mark.parametrize(
    ("budget", "seed", "message"),
    [
        (Budget(trials=-1), 0, "budget of -1 trials"),
        (Budget(seconds=math.nan), 0, "budget of nan seconds"),
        (Budget(seconds=-1.0), 0, "budget of -1.0 seconds"),
        (None, 2**63, "does not fit 64 bits"),
    ],
)
def test_impossible_budget_or_seed_is_refused(
    repository: Repository, budget: Budget | None, seed: int, message: str
) -> None:
    with pytest.raises(StoreInputError, match=message):
        repository.open_run(DEPLOYMENT, SETTINGS, seed=seed, budget=budget)
    assert repository.runs() == []


def test_runs_are_listed_newest_first(repository: Repository, clock: FakeClock) -> None:
    first = repository.open_run(DEPLOYMENT, SETTINGS)
    clock.advance(5)
    other = repository.open_run({"target": "other"}, SETTINGS)
    repository.finish_run(other.id, "failed")
    assert [run.id for run in repository.runs()] == [other.id, first.id]
    assert [run.id for run in repository.runs(state="failed")] == [other.id]
    mark = first.deployment.fingerprint
    assert [run.id for run in repository.runs(deployment_fingerprint=mark)] == [first.id]
    assert [run.id for run in repository.runs(limit=1, offset=1)] == [first.id]
    assert other.created_at - first.created_at == 5


def test_stage_and_verdict_are_kept(repository: Repository, run: RunRecord) -> None:
    repository.set_stage(run.id, "confirm")
    repository.finish_run(run.id, "done", {"verdict": "inconclusive", "ratio": 1.01})
    stored = repository.run(run.uuid)
    assert (stored.state, stored.stage) == ("done", "confirm")
    assert stored.verdict == {"verdict": "inconclusive", "ratio": 1.01}
    assert stored.owner is None


def test_two_drivers_never_drive_one_run(
    repository: Repository, run: RunRecord, clock: FakeClock
) -> None:
    mine = this_process()
    theirs = replace(mine, host="elsewhere", pid=4321, token="other")
    repository.claim_run(run.id, theirs, 30)
    with pytest.raises(RunBusyError, match=r"process 4321 on elsewhere .*30 s"):
        repository.claim_run(run.id, mine, 30)
    clock.advance(20)
    repository.claim_run(run.id, theirs, 30)
    clock.advance(20)
    with pytest.raises(RunBusyError, match="10 s"):
        repository.claim_run(run.id, mine, 30)
    clock.advance(11)
    repository.claim_run(run.id, mine, 30)
    with pytest.raises(RunBusyError, match=f"process {mine.pid}"):
        repository.claim_run(run.id, theirs, 30)
    assert repository.run(run.id).owner == mine


def test_rivals_are_live_drivers_of_other_runs_of_the_deployment(
    repository: Repository, run: RunRecord, clock: FakeClock
) -> None:
    same = [
        repository.open_run(run.deployment.description, {"space": n}, resume=False)
        for n in range(4)
    ]
    other = repository.open_run({"target": "other"}, {})
    mine = this_process()
    owners = {
        run.id: mine,
        same[0].id: replace(mine, host="elsewhere", pid=4321, token="far"),
        same[1].id: replace(mine, token="near"),
        same[2].id: replace(mine, started=mine.started - 1000, token="gone"),
        other.id: replace(mine, token="other"),
    }
    for run_id, owner in owners.items():
        repository.claim_run(run_id, owner, 30)
    found = {rival.uuid: rival.owner for rival in repository.rivals(run.id)}
    assert found == {one.uuid: owners[one.id] for one in same[:2]}
    clock.advance(31)
    assert repository.rivals(run.id) == []


def test_a_live_driver_of_this_host_is_not_taken_over(
    repository: Repository, run: RunRecord
) -> None:
    repository.claim_run(run.id, this_process(), 30)
    with pytest.raises(RunBusyError):
        repository.claim_run(run.id, this_process(), 30)
    repository.finish_run(run.id, "interrupted")
    repository.claim_run(run.id, this_process(), 30)


def test_b13_a_dead_driver_is_taken_over_at_once_with_its_leases_only(
    repository: Repository, run: RunRecord
) -> None:
    """B13: the dead driver's trials are queued again; a live worker elsewhere keeps its own."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = psutil.Process(process.pid).create_time()
    dead = replace(this_process(), pid=process.pid, started=started, token="dead")
    repository.claim_run(run.id, dead, 3600)
    repository.add_trials(run.id, [NewTrial(config={"k": k}) for k in range(3)])
    for owner in (dead.key, f"{dead.key}/worker-1", f"{dead.key}x"):
        assert repository.lease(run.id, owner, 3600) is not None
    mine = this_process()
    with pytest.raises(RunBusyError):
        repository.claim_run(run.id, mine, 30)
    process.kill()
    process.communicate()
    repository.claim_run(run.id, mine, 30)
    states = [(trial.state, trial.owner) for trial in repository.trials(run.id)]
    assert states == [("queued", None), ("queued", None), ("leased", f"{dead.key}x")]
    again = repository.lease(run.id, mine.key, 60)
    assert again is not None and (again.number, again.attempt) == (0, 2)


def test_a_reused_pid_is_not_mistaken_for_the_driver() -> None:
    mine = this_process()
    assert not is_gone(mine)
    assert is_gone(replace(mine, started=mine.started - 1000))
    assert not is_gone(replace(mine, host="elsewhere", started=0.0))


def test_artifacts_are_replaced_and_kept_apart(repository: Repository, run: RunRecord) -> None:
    other = repository.open_run({"target": "other"}, {})
    repository.save_artifact(run.id, "costs", {"step_s": [1e-9, 0.1 + 0.2]})
    repository.save_artifact(run.id, "costs", {"step_s": [0.5]})
    repository.save_artifact(other.id, "costs", None)
    repository.save_artifact(run.id, "heldout", ["a", "b"])
    assert repository.load_artifact(run.id, "costs") == {"step_s": [0.5]}
    assert repository.load_artifact(other.id, "costs") is None
    assert repository.load_artifact(run.id, "heldout") == ["a", "b"]
    assert repository.load_artifact(run.id, "absent") is None
    with pytest.raises(
        StoreInputError, match=r"artifact 'n{60}'\.\.\. has 256 characters: use 1 to 255"
    ):
        repository.save_artifact(run.id, "n" * 256, {})
    with pytest.raises(StoreInputError, match="no run 99"):
        repository.save_artifact(99, "costs", {})


def test_references_keep_their_order_and_the_last_word(
    repository: Repository, run: RunRecord
) -> None:
    def reference(request_id: str, *token_ids: int) -> StoredReference:
        return StoredReference(request_id=request_id, token_ids=token_ids, stop_reason="length")

    repository.save_references(run.id, [reference("b", 1, 2), reference("a", 3)])
    repository.save_references(run.id, [reference("c"), reference("b", 9), reference("c", 4)])
    loaded = repository.load_references(run.id)
    assert list(loaded) == ["b", "a", "c"]
    assert loaded["b"] == reference("b", 9) and loaded["c"] == reference("c", 4)


def test_bundles_of_a_run(repository: Repository, run: RunRecord) -> None:
    records = [
        BundleRecord(
            path=f"/b{n}", checksum="c" * 64, deployment_fingerprint="d" * 64, created_at=n
        )
        for n in (2.0, 1.0)
    ]
    for record in records:
        repository.add_bundle(run.id, record)
    assert repository.bundles(run.id) == records
    assert repository.bundles(run.id + 1) == []
