"""Trials: queue, leases, outcomes. Each function works inside its caller's transaction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Select, and_, func, insert, or_, select
from sqlalchemy.orm import Session

from draftsmith.store.canonical import fingerprint, plain_json
from draftsmith.store.errors import StoreInputError
from draftsmith.store.models import Measurement, Output, Run, Trial
from draftsmith.store.records import (
    FINISHED,
    AddedTrial,
    NewTrial,
    TrialCounts,
    TrialOutcome,
    TrialRecord,
    TrialState,
)
from draftsmith.store.rows import fields_of, output_row, timing_row, trial_record

_STAGE_LENGTH = 64
_Child = TypeVar("_Child", Measurement, Output)


def add(session: Session, now: float, run: Run, trials: Sequence[NewTrial]) -> list[AddedTrial]:
    """See Repository.add_trials."""
    top = session.scalar(select(func.max(Trial.number)).where(Trial.run_id == run.id))
    number = 0 if top is None else top + 1
    spent = session.scalar(
        select(func.count()).where(Trial.run_id == run.id, Trial.budgeted.is_(True))
    )
    left = math.inf if run.budget_trials is None else run.budget_trials - (spent or 0)
    answers = []
    for new in trials:
        if not 0 < len(new.stage) <= _STAGE_LENGTH:
            raise StoreInputError(f"stage {new.stage!r}: use 1 to {_STAGE_LENGTH} characters")
        mark = fingerprint(new.config)
        same = session.scalars(
            select(Trial).where(
                Trial.run_id == run.id,
                Trial.config_hash == mark,
                Trial.stage == new.stage,
                Trial.rung == new.rung,
            )
        ).first()
        if same is not None:
            answers.append(AddedTrial(status="repeat", trial=trial_record(same)))
            continue
        if new.budgeted and left <= 0:
            answers.append(AddedTrial(status="over_budget", trial=None))
            continue
        trial = Trial(
            **{**fields_of(new), "config": plain_json(new.config)},
            run_id=run.id,
            number=number,
            config_hash=mark,
            state="queued",
            attempt=0,
            reason="",
            created_at=now,
        )
        session.add(trial)
        session.flush()
        answers.append(AddedTrial(status="added", trial=trial_record(trial)))
        number += 1
        left -= new.budgeted
    return answers


def lease(
    session: Session,
    now: float,
    run_id: int,
    owner: str,
    ttl_s: float,
    stage: str | None,
    max_attempts: int | None,
) -> TrialRecord | None:
    """See Repository.lease."""
    free = or_(Trial.state == "queued", and_(Trial.state == "leased", Trial.expires_at <= now))
    query = select(Trial).where(Trial.run_id == run_id, free).order_by(Trial.number).limit(1)
    if stage is not None:
        query = query.where(Trial.stage == stage)
    while (trial := session.scalars(query).first()) is not None:
        if max_attempts is not None and trial.attempt >= max_attempts:
            _close(trial, now, "failed", f"lost {trial.attempt} times")
            session.flush()
            continue
        trial.state, trial.owner, trial.expires_at = "leased", owner, now + ttl_s
        trial.attempt += 1
        return trial_record(trial)
    return None


def renew(session: Session, now: float, trial_id: int, owner: str, ttl_s: float) -> bool:
    """See Repository.renew."""
    trial = find_trial(session, trial_id)
    if not _held(trial, owner):
        return False
    trial.expires_at = now + ttl_s
    return True


def requeue(session: Session, trial_id: int, owner: str) -> bool:
    """See Repository.requeue."""
    trial = find_trial(session, trial_id)
    if not _held(trial, owner):
        return False
    trial.state, trial.owner, trial.expires_at = "queued", None, None
    trial.attempt -= 1
    return True


def finish(session: Session, now: float, trial_id: int, owner: str, outcome: TrialOutcome) -> bool:
    """See Repository.finish."""
    trial = find_trial(session, trial_id)
    if not _held(trial, owner):
        return False
    if outcome.state not in FINISHED:
        raise StoreInputError(f"outcome state {outcome.state!r}: use one of {', '.join(FINISHED)}")
    wrong = _score_fault(outcome) if outcome.state == "done" else ""
    if wrong:
        _close(trial, now, "failed", "; ".join(filter(None, (wrong, outcome.reason))))
    else:
        _close(trial, now, outcome.state, outcome.reason)
    if trial.state == "done":
        trial.score = outcome.score
        trial.score_low, trial.score_high = outcome.score_low, outcome.score_high
    trial.feasible = trial.state == "done" and outcome.feasible is True
    trial.summary = plain_json(outcome.summary)
    timings = [timing_row(trial_id, place, item) for place, item in enumerate(outcome.timings)]
    outputs = [output_row(trial_id, place, item) for place, item in enumerate(outcome.outputs)]
    _insert(session, Measurement, timings)
    _insert(session, Output, outputs)
    return True


def select_trials(
    run_id: int,
    states: Iterable[TrialState] | None,
    stage: str | None,
    rung: int | None,
) -> Select[Any]:
    """Trials of a run by number, filtered."""
    query = select(Trial).where(Trial.run_id == run_id).order_by(Trial.number)
    if states is not None:
        query = query.where(Trial.state.in_(list(states)))
    if stage is not None:
        query = query.where(Trial.stage == stage)
    if rung is not None:
        query = query.where(Trial.rung == rung)
    return query


def ranked(query: Select[Any]) -> Select[Any]:
    """Of those only done and feasible ones, best score first: a lossy trial is never ranked."""
    good = query.where(Trial.state == "done", Trial.feasible.is_(True), Trial.score.is_not(None))
    return good.order_by(None).order_by(Trial.score.desc(), Trial.number)


def counts(session: Session, run_id: int) -> TrialCounts:
    """See Repository.counts."""
    rows = session.execute(
        select(Trial.state, func.count())
        .where(Trial.run_id == run_id, Trial.budgeted.is_(True))
        .group_by(Trial.state)
    )
    return TrialCounts(**{state: count for state, count in rows})


def find_trial(session: Session, trial_id: int) -> Trial:
    """The row; StoreInputError when there is none."""
    trial = session.get(Trial, trial_id)
    if trial is None:
        raise StoreInputError(f"the store has no trial with id {trial_id}")
    return trial


def children(session: Session, table: type[_Child], trial_id: int, order: Any) -> Sequence[_Child]:
    """Rows of ``table`` that belong to a trial, in order."""
    find_trial(session, trial_id)
    return session.scalars(select(table).where(table.trial_id == trial_id).order_by(order)).all()


def _held(trial: Trial, owner: str) -> bool:
    return trial.state == "leased" and trial.owner == owner


def _close(trial: Trial, now: float, state: TrialState, reason: str) -> None:
    trial.state, trial.reason, trial.finished_at = state, reason, now
    trial.owner = trial.expires_at = None
    trial.feasible = False


def _score_fault(outcome: TrialOutcome) -> str:
    """Why a done outcome's numbers cannot be ranked, or nothing."""
    if not _finite(outcome.score):
        return f"score is {outcome.score!r}, not a finite number"
    for name, bound in (("score_low", outcome.score_low), ("score_high", outcome.score_high)):
        if bound is not None and not _finite(bound):
            return f"{name} is {bound!r}, not a finite number"
    return ""


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _insert(session: Session, table: type[Any], rows: list[dict[str, Any]]) -> None:
    if rows:
        session.execute(insert(table), rows)
