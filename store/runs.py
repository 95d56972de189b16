"""Runs and who drives them. Each function works inside its caller's transaction."""

from __future__ import annotations

import math
import os
import uuid
from dataclasses import asdict

from sqlalchemy import false, or_, select, update
from sqlalchemy.orm import Session

from draftsmith.store.canonical import canonical_json, fingerprint, plain_json
from draftsmith.store.damage import DamagedRowError
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
_ABSENT = "absent"
_SHOWN_LENGTH = 80
_SHOWN_BEFORE = 20  # characters before the first difference
LATEST = "latest"


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
    """The row with this id, or with this uuid, its beginning or ``latest``; StoreInputError when
    there is none, or more than one.
    """
    query = select(Run).order_by(Run.id.desc()).limit(2)
    if isinstance(run, int):
        query = query.where(Run.id == run)
    elif run == LATEST:
        query = query.limit(1)
    else:
        begins = Run.uuid.startswith(run, autoescape=True) if run else false()
        query = query.where(begins)
    found = session.scalars(query).all()
    if not found:
        raise StoreInputError(f"the store has no run {run!r}: list its runs with `draftsmith show`")
    if len(found) > 1:
        raise StoreInputError(
            f"{run!r} begins several runs, {found[0].uuid} and {found[1].uuid} among them: give "
            "more of the uuid"
        )
    return found[0]


def claim(session: Session, now: float, run_id: int, owner: Owner, ttl_s: float) -> None:
    """See Repository.claim_run."""
    run = find_run(session, run_id)
    holder = _owner(run)
    if holder is not None and holder != owner:
        if _is_driven(run, now):
            left_s = (run.owner_expires_at or 0.0) - now
            raise RunBusyError(
                f"run {run.uuid} is driven by process {holder.pid} on {holder.host} (its claim "
                f"lasts {left_s:.0f} s more). Fix: wait for it or end it, then resume"
            )
        _release_leases(session, run_id, holder)
    run.owner, run.owner_expires_at = asdict(owner), now + ttl_s
    run.state, run.updated_at = "running", now


def rivals(session: Session, now: float, run_id: int) -> list[RunRecord]:
    """See Repository.rivals."""
    run = find_run(session, run_id)
    others = select(Run).where(
        Run.deployment_id == run.deployment_id, Run.id != run_id, Run.owner.is_not(None)
    )
    return [run_record(other) for other in session.scalars(others) if _is_driven(other, now)]


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
        owner=_owner(run),
        owner_expires_at=run.owner_expires_at,
    )


def _owner(run: Run) -> Owner | None:
    if run.owner is None:
        return None
    kinds = {"host": str, "pid": int, "started": int | float, "token": str}
    if run.owner.keys() != kinds.keys() or not all(
        isinstance(run.owner[name], kind) for name, kind in kinds.items()
    ):
        raise DamagedRowError(run, "owner", run.owner)
    return Owner(**run.owner)


def _is_driven(run: Run, now: float) -> bool:
    """Whether a driver that may be alive holds the run."""
    holder = _owner(run)
    return holder is not None and (run.owner_expires_at or 0.0) > now and not is_gone(holder)


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
    old = {"seed": run.seed, "deployment": run.deployment.description, "settings": run.settings}
    new = {"seed": seed, "deployment": plain_json(deployment), "settings": plain_json(settings)}
    was, now = _leaves(old), _leaves(new)
    changed = [
        "{} was {}, is {}".format(name, *_apart(was.get(name, _ABSENT), now.get(name, _ABSENT)))
        for name in sorted(was.keys() | now.keys(), key=lambda name: (name != "seed", name))
        if was.get(name) != now.get(name)
    ]
    if changed:
        raise StoreInputError(
            f"run {run.uuid} was begun with other values: {'; '.join(changed[:5])}. Fix: resume it "
            "with the values it was begun with, or begin a new run"
        )


def _leaves(value: Json, prefix: str = "") -> dict[str, str]:
    """The canonical text of every value that is no filled mapping, by its dotted place."""
    leaves = {}
    for key, item in value.items():
        if isinstance(item, dict) and item:
            leaves.update(_leaves(item, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = canonical_json(item)
    return leaves


def _apart(old: str, new: str) -> tuple[str, str]:
    """Both texts, cut to where they differ."""
    same = len(os.path.commonprefix([old, new]))
    start = max(0, same - _SHOWN_BEFORE) if max(len(old), len(new)) > _SHOWN_LENGTH else 0
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int) -> str:
    end = start + _SHOWN_LENGTH
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
