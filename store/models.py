"""The store's tables. All carry the prefix ``draftsmith_``: Optuna keeps a table ``trials`` of its
own in the same database. Times are seconds since the epoch, UTC. A changed table needs a revision
in migrations/.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from draftsmith.store.damage import check_rows

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class CleanText(TypeDecorator[str]):
    """Text that any database takes: a worker's last words may hold NULs and broken surrogates."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        float: Double,
        str: CleanText,
        dict[str, Any]: JSON(none_as_null=True),
        list[int]: JSON,
        list[str]: JSON,
    }


check_rows(Base)


class WriteLock(Base):
    """One row that writers lock first, except on SQLite (it has BEGIN IMMEDIATE)."""

    __tablename__ = "draftsmith_write_lock"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Deployment(Base):
    __tablename__ = "draftsmith_deployments"
    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    description: Mapped[dict[str, Any]]
    created_at: Mapped[float]


class Run(Base):
    __tablename__ = "draftsmith_runs"
    __table_args__ = (Index(None, "deployment_id", "settings_fingerprint"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    uuid: Mapped[str] = mapped_column(String(36), unique=True)
    deployment_id: Mapped[int] = mapped_column(ForeignKey(Deployment.id))
    state: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str]
    settings: Mapped[dict[str, Any]]
    settings_fingerprint: Mapped[str] = mapped_column(String(64))
    seed: Mapped[int] = mapped_column(BigInteger)
    budget_trials: Mapped[int | None]
    budget_seconds: Mapped[float | None]
    verdict: Mapped[dict[str, Any] | None]
    owner: Mapped[dict[str, Any] | None]
    owner_expires_at: Mapped[float | None]
    created_at: Mapped[float]
    updated_at: Mapped[float]
    deployment: Mapped[Deployment] = relationship(lazy="joined", innerjoin=True)


class Trial(Base):
    __tablename__ = "draftsmith_trials"
    __table_args__ = (
        UniqueConstraint("run_id", "number"),
        UniqueConstraint("run_id", "config_hash", "stage", "rung"),
        Index(None, "run_id", "state"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey(Run.id))
    number: Mapped[int]
    config: Mapped[dict[str, Any]]
    config_hash: Mapped[str] = mapped_column(String(64))
    stage: Mapped[str] = mapped_column(String(64))
    rung: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    owner: Mapped[str | None]
    expires_at: Mapped[float | None]
    attempt: Mapped[int]
    proposer: Mapped[str]
    why: Mapped[str]
    reason: Mapped[str]
    optuna_number: Mapped[int | None]
    budgeted: Mapped[bool]
    score: Mapped[float | None]
    score_low: Mapped[float | None]
    score_high: Mapped[float | None]
    feasible: Mapped[bool | None]
    summary: Mapped[dict[str, Any] | None]
    created_at: Mapped[float]
    finished_at: Mapped[float | None]


class Measurement(Base):
    """One timed unit; ``position`` is its place in the order of measuring."""

    __tablename__ = "draftsmith_measurements"
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    config: Mapped[str]
    unit: Mapped[int]
    repeat: Mapped[int]
    request_ids: Mapped[list[str]]
    category: Mapped[str]
    seconds: Mapped[float]
    prefill_s: Mapped[float]
    num_tokens: Mapped[int]
    num_steps: Mapped[int]
    num_drafted: Mapped[int]
    num_accepted: Mapped[int]


class Output(Base):
    """One output with its verdict."""

    __tablename__ = "draftsmith_outputs"
    trial_id: Mapped[int] = mapped_column(ForeignKey(Trial.id), primary_key=True)
    ordinal: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    config: Mapped[str]
    request_id: Mapped[str]
    token_ids: Mapped[list[int]]
    stop_reason: Mapped[str]
    judgement: Mapped[str]
    num_ties: Mapped[int]
    position: Mapped[int | None]
    emitted: Mapped[int | None]
    expected: Mapped[int | None]
    margin: Mapped[float | None]
    detail: Mapped[str]
    accepted_by_position: Mapped[list[int]]
    drafted_by_position: Mapped[list[int]]


class Reference(Base):
    """Stock's output for one request."""

    __tablename__ = "draftsmith_references"
    run_id: Mapped[int] = mapped_column(ForeignKey(Run.id), primary_key=True)
    request_id: Mapped[str] = mapped_column(String(255), primary_key=True)
    ordinal: Mapped[int]
    token_ids: Mapped[list[int]]
    stop_reason: Mapped[str]


class Artifact(Base):
    """A JSON value under a name."""

    __tablename__ = "draftsmith_artifacts"
    run_id: Mapped[int] = mapped_column(ForeignKey(Run.id), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), primary_key=True)
    value: Mapped[Any] = mapped_column(JSON)
    updated_at: Mapped[float]


class Bundle(Base):
    __tablename__ = "draftsmith_bundles"
    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey(Run.id), index=True)
    path: Mapped[str]
    checksum: Mapped[str] = mapped_column(String(64))
    deployment_fingerprint: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float]
