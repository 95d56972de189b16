"""What a run keeps besides trials: artifacts, references, bundles. Works inside the caller's
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from draftsmith.store.canonical import plain_json
from draftsmith.store.errors import StoreInputError
from draftsmith.store.models import Artifact, Bundle, Reference
from draftsmith.store.records import BundleRecord, StoredReference

_NAME_LENGTH = 255


def save_artifact(session: Session, now: float, run_id: int, name: str, value: Any) -> None:
    _check_name("artifact", name)
    artifact = Artifact(run_id=run_id, name=name, value=plain_json(value), updated_at=now)
    session.merge(artifact)


def load_artifact(session: Session, run_id: int, name: str) -> Any:
    found = session.get(Artifact, (run_id, name))
    return None if found is None else found.value


def save_references(session: Session, run_id: int, references: Iterable[StoredReference]) -> None:
    """New requests go behind those saved before; saved ones keep their place."""
    kept = {row.request_id: row for row in _references(session, run_id)}
    top = session.scalar(select(func.max(Reference.ordinal)).where(Reference.run_id == run_id))
    ordinal = 0 if top is None else top + 1
    for reference in references:
        _check_name("request id", reference.request_id)
        row = kept.get(reference.request_id)
        if row is None:
            row = Reference(run_id=run_id, request_id=reference.request_id, ordinal=ordinal)
            kept[reference.request_id] = row
            session.add(row)
            ordinal += 1
        row.token_ids = list(reference.token_ids)
        row.stop_reason = reference.stop_reason


def load_references(session: Session, run_id: int) -> dict[str, StoredReference]:
    return {
        row.request_id: StoredReference(
            request_id=row.request_id,
            token_ids=tuple(row.token_ids),
            stop_reason=row.stop_reason,
        )
        for row in _references(session, run_id)
    }


def add_bundle(session: Session, run_id: int, bundle: BundleRecord) -> None:
    session.add(
        Bundle(
            run_id=run_id,
            path=bundle.path,
            checksum=bundle.checksum,
            deployment_fingerprint=bundle.deployment_fingerprint,
            created_at=bundle.created_at,
        )
    )


def list_bundles(session: Session, run_id: int) -> list[BundleRecord]:
    rows = session.scalars(select(Bundle).where(Bundle.run_id == run_id).order_by(Bundle.id))
    return [
        BundleRecord(
            path=row.path,
            checksum=row.checksum,
            deployment_fingerprint=row.deployment_fingerprint,
            created_at=row.created_at,
        )
        for row in rows
    ]


def _references(session: Session, run_id: int) -> list[Reference]:
    query = select(Reference).where(Reference.run_id == run_id).order_by(Reference.ordinal)
    return list(session.scalars(query))


def _check_name(what: str, name: str) -> None:
    if not 0 < len(name) <= _NAME_LENGTH or "\x00" in name:
        shown = f"{name!r}" if len(name) <= 60 else f"{name[:60]!r}..."
        raise StoreInputError(
            f"{what} {shown} has {len(name)} characters: use 1 to {_NAME_LENGTH}, none of them NUL"
        )
