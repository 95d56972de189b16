"""Queue, leases and outcomes, on each kind of database."""

from __future__ import annotations

import math

import pytest

from draftsmith.store.canonical import fingerprint
from draftsmith.store.errors import StoreInputError
from draftsmith.store.records import (
    Budget,
    NewTrial,
    RunRecord,
    StoredOutput,
    StoredTiming,
    TrialOutcome,
    TrialRecord,
)
from draftsmith.store.repository import Repository
from tests.support.clock import FakeClock

GOOD = TrialOutcome(state="done", score=1.2, score_low=1.1, score_high=1.3, feasible=True)


def new(block_size: float, **fields: object) -> NewTrial:
    return NewTrial(config={"drafter": "ngram", "block_size": block_size}, **fields)  # type: ignore[arg-type]


def queue(repository: Repository, run: RunRecord, *sizes: int) -> list[TrialRecord]:
    added = repository.add_trials(run.id, [new(size) for size in sizes])
    return [answer.trial for answer in added if answer.trial is not None]


def finish_next(repository: Repository, run: RunRecord, outcome: TrialOutcome = GOOD) -> None:
    trial = repository.lease(run.id, "w", 60)
    assert trial is not None
    assert repository.finish(trial.id, "w", outcome)


def test_a_trial_comes_back_as_it_was_given(repository: Repository, run: RunRecord) -> None:
    given = new(4, stage="confirm", rung=2, proposer="sampler", why="TPE\x00", optuna_number=9)
    (answer,) = repository.add_trials(run.id, [given])
    assert answer.status == "added"
    (trial,) = repository.trials(run.id)
    assert (trial.number, trial.state, trial.attempt) == (0, "queued", 0)
    assert (trial.config, trial.stage, trial.rung) == (given.config, "confirm", 2)
    assert (trial.proposer, trial.why, trial.optuna_number) == ("sampler", "TPE\ufffd", 9)
    assert trial.config_hash == fingerprint(given.config)


def test_b31_same_configuration_twice_is_a_repeat(repository: Repository, run: RunRecord) -> None:
    """B31: 0.1 + 0.2 and 0.3 are one configuration, key order and int/float spelling too."""
    first = NewTrial(config={"stop_threshold": 0.1 + 0.2, "block_size": 4})
    again = NewTrial(config={"block_size": 4.0, "stop_threshold": 0.3})
    answers = repository.add_trials(run.id, [first, again])
    answers += repository.add_trials(run.id, [again, new(4, rung=0), new(4, rung=1)])
    assert [answer.status for answer in answers] == ["added", "repeat", "repeat", "added", "added"]
    assert {answers[at].trial.id for at in (0, 1, 2)} == {answers[0].trial.id}  # type: ignore[union-attr]
    assert [trial.number for trial in repository.trials(run.id)] == [0, 1, 2]


def test_b31_baseline_is_enqueued_once_across_two_drivers_and_a_resume(
    repository: Repository, run: RunRecord
) -> None:
    """B31."""
    baseline = NewTrial(config={"drafter": "none"}, stage="baseline", budgeted=False)
    assert repository.add_trials(run.id, [baseline])[0].status == "added"
    assert repository.add_trials(run.id, [baseline])[0].status == "repeat"
    finish_next(repository, run)
    assert repository.add_trials(run.id, [baseline])[0].status == "repeat"
    assert len(repository.trials(run.id)) == 1


def test_b12_budget_is_exact_and_a_finished_budget_resumes_to_nothing(
    repository: Repository,
) -> None:
    """B12: failed and pruned trials count like done ones, unbudgeted ones do not."""
    deployment, settings = {"target": "t"}, {"space": "s"}
    run = repository.open_run(deployment, settings, budget=Budget(trials=4))
    stock = NewTrial(config={"drafter": "none"}, stage="baseline", budgeted=False)
    answers = repository.add_trials(run.id, [stock, *(new(size) for size in range(2, 8))])
    statuses = [answer.status for answer in answers]
    assert statuses == ["added"] * 5 + ["over_budget"] * 2
    assert answers[-1].trial is None
    finish_next(repository, run)
    finish_next(repository, run)
    finish_next(repository, run, TrialOutcome(state="failed", reason="oom"))
    finish_next(repository, run, TrialOutcome(state="pruned", reason="slower"))
    counts = repository.counts(run.id)
    assert (counts.done, counts.failed, counts.pruned, counts.queued) == (1, 1, 1, 1)
    assert (counts.finished, counts.open, counts.remaining(run.budget)) == (3, 1, 0)
    finish_next(repository, run)
    again = repository.open_run(deployment, settings)
    assert (again.id, again.resumed, again.budget) == (run.id, True, Budget(trials=4))
    assert repository.counts(run.id).remaining(again.budget) == 0
    assert repository.add_trials(run.id, [new(30)])[0].status == "over_budget"
    assert repository.lease(run.id, "w", 60) is None
    more = repository.open_run(deployment, settings, budget=Budget(trials=5))
    assert repository.counts(more.id).remaining(more.budget) == 1


def test_leases_go_out_in_order_and_once(repository: Repository, run: RunRecord) -> None:
    queue(repository, run, 2, 4)
    first, second = repository.lease(run.id, "a", 60), repository.lease(run.id, "b", 60)
    assert first is not None and second is not None
    assert [(t.number, t.owner, t.attempt) for t in (first, second)] == [(0, "a", 1), (1, "b", 1)]
    assert repository.lease(run.id, "c", 60) is None


def test_lease_by_stage(repository: Repository, run: RunRecord) -> None:
    repository.add_trials(run.id, [new(2), new(2, stage="confirm")])
    trial = repository.lease(run.id, "a", 60, stage="confirm")
    assert trial is not None and trial.number == 1
    assert repository.lease(run.id, "a", 60, stage="confirm") is None


def test_b13_lost_lease_is_taken_over_and_its_late_result_dropped(
    repository: Repository, run: RunRecord, clock: FakeClock
) -> None:
    """B13: same configuration, once, not counted as done; the late result changes nothing."""
    (trial,) = queue(repository, run, 4)
    repository.lease(run.id, "dead", 60)
    clock.advance(61)
    taken = repository.lease(run.id, "live", 60)
    assert taken is not None and (taken.id, taken.attempt) == (trial.id, 2)
    assert taken.config == trial.config
    late = TrialOutcome(state="done", score=9.0, feasible=True, outputs=(output("late"),))
    assert repository.finish(trial.id, "dead", late) is False
    assert repository.renew(trial.id, "dead", 60) is False
    assert repository.outputs(trial.id) == ()
    assert repository.finish(trial.id, "live", GOOD) is True
    assert repository.finish(trial.id, "live", late) is False
    assert repository.finish(trial.id, "dead", late) is False
    assert [(t.state, t.score) for t in repository.trials(run.id)] == [("done", 1.2)]


def test_b13_renewed_lease_of_a_live_worker_is_untouched(
    repository: Repository, run: RunRecord, clock: FakeClock
) -> None:
    """B13: a slow worker that renews is never taken for dead."""
    (trial,) = queue(repository, run, 4)
    repository.lease(run.id, "slow", 60)
    for _ in range(5):
        clock.advance(59)
        assert repository.renew(trial.id, "slow", 60)
        assert repository.lease(run.id, "other", 60) is None
    clock.advance(61)
    assert repository.finish(trial.id, "slow", GOOD), "expired, but nobody else took it"


def test_three_lost_leases_fail_the_trial(
    repository: Repository, run: RunRecord, clock: FakeClock
) -> None:
    queue(repository, run, 4, 8)
    for attempt in (1, 2, 3):
        trial = repository.lease(run.id, f"w{attempt}", 10)
        assert trial is not None and (trial.number, trial.attempt) == (0, attempt)
        clock.advance(11)
    following = repository.lease(run.id, "w4", 10)
    assert following is not None and following.number == 1
    lost = repository.trials(run.id)[0]
    assert (lost.state, lost.reason, lost.feasible) == ("failed", "lost 3 times", False)


def test_a_trial_may_be_lost_without_limit(
    repository: Repository, run: RunRecord, clock: FakeClock
) -> None:
    queue(repository, run, 4)
    for attempt in range(1, 7):
        trial = repository.lease(run.id, f"w{attempt}", 10, max_attempts=None)
        assert trial is not None and trial.attempt == attempt
        clock.advance(11)


def test_requeue_gives_the_attempt_back(repository: Repository, run: RunRecord) -> None:
    (trial,) = queue(repository, run, 4)
    for _ in range(5):
        assert repository.lease(run.id, "w", 60) is not None
        assert repository.requeue(trial.id, "other") is False
        assert repository.requeue(trial.id, "w") is True
    assert repository.trials(run.id)[0].attempt == 0


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, None, "", True])
def test_b20_a_score_that_is_no_number_fails_the_trial(
    repository: Repository, run: RunRecord, score: object
) -> None:
    """B20: the reason names the value and the search goes on."""
    (trial,) = queue(repository, run, 4)
    outcome = TrialOutcome(state="done", score=score, feasible=True)  # type: ignore[arg-type]
    finish_next(repository, run, outcome)
    (stored,) = repository.trials(run.id)
    assert (stored.state, stored.score, stored.feasible) == ("failed", None, False)
    assert repr(score) in stored.reason
    assert repository.leaderboard(run.id) == []
    assert queue(repository, run, 5)[0].number == trial.number + 1


def test_b20_a_lossy_trial_never_leads(repository: Repository, run: RunRecord) -> None:
    """B20: 5x lossy, 1.2x lossless, 3x failed: the best is 1.2x."""
    queue(repository, run, 2, 3, 4, 5, 6)
    finish_next(repository, run, TrialOutcome(state="done", score=5.0, reason="divergent"))
    finish_next(repository, run, GOOD)
    finish_next(repository, run, TrialOutcome(state="failed", score=3.0, feasible=True))
    finish_next(repository, run, TrialOutcome(state="pruned", score=2.0, feasible=True))
    finish_next(repository, run, GOOD)
    assert [trial.number for trial in repository.leaderboard(run.id)] == [1, 4]
    assert [trial.number for trial in repository.leaderboard(run.id, limit=1)] == [1]
    assert repository.leaderboard(run.id, stage="confirm") == []
    assert repository.leaderboard(run.id, rung=1) == []
    lossy = repository.trials(run.id)[0]
    assert (lossy.state, lossy.score, lossy.feasible) == ("done", 5.0, False)


def test_no_feasible_trial_means_no_leader(repository: Repository, run: RunRecord) -> None:
    queue(repository, run, 2)
    finish_next(repository, run, TrialOutcome(state="done", score=5.0))
    assert repository.leaderboard(run.id) == []


def output(request_id: str, margin: float | None = 0.125) -> StoredOutput:
    return StoredOutput(
        config="trial",
        request_id=request_id,
        token_ids=(5, 27, 2),
        stop_reason="length",
        judgement="divergent",
        num_ties=1,
        position=1,
        emitted=27,
        expected=3,
        margin=margin,
        detail="top-p",
        accepted_by_position=(3, 1),
        drafted_by_position=(4, 4),
    )


def timing(unit: int) -> StoredTiming:
    return StoredTiming(
        config="stock",
        unit=unit,
        repeat=0,
        request_ids=("a", "b"),
        category="code",
        seconds=0.1 + 0.2,
        prefill_s=1e-9,
        num_tokens=64,
        num_steps=20,
        num_drafted=80,
        num_accepted=44,
    )


def test_evidence_comes_back_in_order_and_exact(repository: Repository, run: RunRecord) -> None:
    (trial,) = queue(repository, run, 4)
    outcome = TrialOutcome(
        state="done",
        score=1.0,
        feasible=True,
        summary={"peak": {"stock": 12}, "noise": 0.1 + 0.2},
        timings=(timing(3), timing(1), timing(2)),
        outputs=(output("z"), output("a")),
    )
    finish_next(repository, run, outcome)
    assert repository.timings(trial.id) == outcome.timings
    assert repository.outputs(trial.id) == outcome.outputs
    assert repository.trials(run.id)[0].summary == outcome.summary


def test_an_infinite_margin_is_kept_in_words(repository: Repository, run: RunRecord) -> None:
    (trial,) = queue(repository, run, 4)
    outcome = TrialOutcome(state="done", score=1.0, outputs=(output("a", margin=math.inf),))
    finish_next(repository, run, outcome)
    (stored,) = repository.outputs(trial.id)
    assert (stored.margin, stored.detail) == (None, "top-p margin inf")


def test_an_outcome_is_stored_whole_or_not_at_all(repository: Repository, run: RunRecord) -> None:
    (trial,) = queue(repository, run, 4)
    repository.lease(run.id, "w", 60)
    bad = TrialOutcome(state="done", score=1.0, summary={"x": math.nan}, outputs=(output("a"),))
    with pytest.raises(StoreInputError, match=r"\$\.x is nan"):
        repository.finish(trial.id, "w", bad)
    assert repository.trials(run.id)[0].state == "leased"
    assert repository.outputs(trial.id) == ()
    assert repository.finish(trial.id, "w", GOOD)


def test_pages_and_filters(repository: Repository, run: RunRecord) -> None:
    queue(repository, run, *range(2, 9))
    finish_next(repository, run)
    numbers = [trial.number for trial in repository.trials(run.id, limit=2, offset=3)]
    assert numbers == [3, 4]
    assert [t.number for t in repository.trials(run.id, offset=5)] == [5, 6]
    assert [t.number for t in repository.trials(run.id, states=["done"])] == [0]
    assert repository.trials(run.id, stage="confirm") == []
    assert len(repository.trials(run.id, stage="explore", rung=0)) == 7


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (NewTrial(config={"x": math.inf}), r"\$\.x is inf"),
        (NewTrial(config={"x": {1, 2}}), r"\$\.x is a set"),
        (NewTrial(config={"x": {3: 4}}), r"key 3"),
        (NewTrial(config={}, stage="s" * 65), "1 to 64 characters"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(
    repository: Repository, run: RunRecord, trial: NewTrial, message: str
) -> None:
    with pytest.raises(StoreInputError, match=message):
        repository.add_trials(run.id, [new(2), trial])
    assert repository.trials(run.id) == []


def test_unknown_run_and_trial_are_refused(repository: Repository) -> None:
    with pytest.raises(StoreInputError, match="no run 99"):
        repository.add_trials(99, [new(2)])
    with pytest.raises(StoreInputError, match="no run 99"):
        repository.lease(99, "w", 1)
    with pytest.raises(StoreInputError, match="no trial with id 99"):
        repository.finish(99, "w", GOOD)
    with pytest.raises(StoreInputError, match="no run 'x'"):
        repository.run("x")
