"""Runs and who drives them. Each function works inside its caller's transaction."""

from __future__ import annotations

import math
import uuid
from dataclasses import asdict
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from draftsmith.store.canonical import canonical_json, fingerprint, plain_json
from draftsmith.store.errors import RunBusyError, StoreInputError
from draftsmith.store.models import Deployment, Run, Trial
from draftsmith.store.owners import is_gone
from draftsmith.store.records import (
    Budget,
    DeploymentRecord,
    Json,
    Owner,
    RunRecord,
    RunState,
)

_UNFINISHED = ("running", "interrupted", "failed")
_SEED_LIMIT = 2**63


def open_run(
    session: Session,
    now: float,
    deployment: Json,
    settings: Json,
    seed: int,
    budget: Budget | None,
    resume: bool | str,
) -> RunRecord:
    """See Repository.open_run."""
    if not -_SEED_LIMIT <= seed < _SEED_LIMIT:
        raise StoreInputError(f"seed {seed} does not fit 64 bits: use {-_SEED_LIMIT} .. 2**63 - 1")
    _check_budget(budget)
    mark = fingerprint({"settings": settings, "seed": seed})
    found = None
    if isinstance(resume, str):
        found = find_run(session, resume)
        _require_same(found, deployment, settings, seed)
    elif resume:
        found = session.scalars(
            select(Run)
            .join(Run.deployment)
            .where(
                Deployment.fingerprint == fingerprint(deployment),
                Run.settings_fingerprint == mark,
                Run.state.in_(_UNFINISHED),
            )
            .order_by(Run.id.desc())
            .limit(1)
        ).first()
    if found is None:
        run = Run(
            uuid=str(uuid.uuid4()),
            deployment=_deployment(session, now, deployment),
            state="running",
            stage="",
            settings=plain_json(settings),
            settings_fingerprint=mark,
            seed=seed,
            created_at=now,
        )
        session.add(run)
    else:
        run = found
    if budget is not None:
        run.budget_trials, run.budget_seconds = budget.trials, budget.seconds
    run.updated_at = now
    session.flush()
    return run_record(run, resumed=found is not None)


def find_run(session: Session, run: int | str) -> Run:
    """The row; StoreInputError when there is none."""
    key = Run.uuid if isinstance(run, str) else Run.id
    found = session.scalars(select(Run).where(key == run)).first()
    if found is None:
        raise StoreInputError(f"the store has no run {run!r}: list its runs with `draftsmith show`")
    return found


def claim(session: Session, now: float, run_id: int, owner: Owner, ttl_s: float) -> None:
    """See Repository.claim_run."""
    run = find_run(session, run_id)
    holder = None if run.owner is None else Owner(**run.owner)
    if holder is not None and holder != owner:
        left_s = (run.owner_expires_at or 0.0) - now
        if left_s > 0 and not is_gone(holder):
            raise RunBusyError(
                f"run {run.uuid} is driven by process {holder.pid} on {holder.host} (its claim "
                f"lasts {left_s:.0f} s more). Fix: wait for it or end it, then resume"
            )
        _release_leases(session, run_id, holder)
    run.owner, run.owner_expires_at = asdict(owner), now + ttl_s
    run.state, run.updated_at = "running", now


def finish(
    session: Session, now: float, run_id: int, state: RunState, verdict: Json | None
) -> RunRecord:
    """See Repository.finish_run."""
    run = find_run(session, run_id)
    run.state, run.updated_at = state, now
    if verdict is not None:
        run.verdict = plain_json(verdict)
    run.owner = run.owner_expires_at = None
    return run_record(run)


def list_runs(
    session: Session,
    state: RunState | None,
    deployment_fingerprint: str | None,
    limit: int,
    offset: int,
) -> list[RunRecord]:
    query = select(Run).order_by(Run.id.desc()).limit(limit).offset(offset)
    if state is not None:
        query = query.where(Run.state == state)
    if deployment_fingerprint is not None:
        query = query.join(Run.deployment).where(Deployment.fingerprint == deployment_fingerprint)
    return [run_record(run) for run in session.scalars(query)]


def run_record(run: Run, resumed: bool = False) -> RunRecord:
    deployment = run.deployment
    return RunRecord(
        id=run.id,
        uuid=run.uuid,
        deployment=DeploymentRecord(
            id=deployment.id,
            fingerprint=deployment.fingerprint,
            description=deployment.description,
            created_at=deployment.created_at,
        ),
        state=run.state,  # type: ignore[arg-type]  # only RunStates are written
        stage=run.stage,
        settings=run.settings,
        settings_fingerprint=run.settings_fingerprint,
        seed=run.seed,
        budget=Budget(trials=run.budget_trials, seconds=run.budget_seconds),
        verdict=run.verdict,
        created_at=run.created_at,
        updated_at=run.updated_at,
        resumed=resumed,
        owner=None if run.owner is None else Owner(**run.owner),
        owner_expires_at=run.owner_expires_at,
    )


def _deployment(session: Session, now: float, description: Json) -> Deployment:
    mark = fingerprint(description)
    found = session.scalars(select(Deployment).where(Deployment.fingerprint == mark)).first()
    return found or Deployment(
        fingerprint=mark, description=plain_json(description), created_at=now
    )


def _release_leases(session: Session, run_id: int, driver: Owner) -> None:
    of_driver = or_(
        Trial.owner == driver.key, Trial.owner.startswith(f"{driver.key}/", autoescape=True)
    )
    session.execute(
        update(Trial)
        .where(Trial.run_id == run_id, Trial.state == "leased", of_driver)
        .values(state="queued", owner=None, expires_at=None)
    )


def _check_budget(budget: Budget | None) -> None:
    if budget is None:
        return
    if budget.trials is not None and not 0 <= budget.trials < 2**31:
        raise StoreInputError(f"budget of {budget.trials} trials: use 0 or more, below 2**31")
    if budget.seconds is not None and not (math.isfinite(budget.seconds) and budget.seconds >= 0):
        raise StoreInputError(f"budget of {budget.seconds} seconds: use a finite number, 0 or more")


def _require_same(run: Run, deployment: Json, settings: Json, seed: int) -> None:
    """Refuse to resume a run under other terms, naming what differs."""
    pairs: list[tuple[str, Any, Any]] = [("seed", run.seed, seed)]
    for title, old, new in (
        ("deployment", run.deployment.description, deployment),
        ("settings", run.settings, settings),
    ):
        for key in sorted(old.keys() | new.keys()):
            pairs.append((f"{title}.{key}", old.get(key), new.get(key)))
    changed = [
        f"{name} was {canonical_json(old):.80}, is {canonical_json(new):.80}"
        for name, old, new in pairs
        if canonical_json(old) != canonical_json(new)
    ]
    if changed:
        raise StoreInputError(
            f"run {run.uuid} was begun with other values: {'; '.join(changed[:5])}. Fix: resume it "
            "with the values it was begun with, or begin a new run"
        )
