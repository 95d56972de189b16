"""Between table rows and records, field by field."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from draftsmith.store.models import Measurement, Output, Trial
from draftsmith.store.records import StoredOutput, StoredTiming, TrialRecord

_TUPLES = ("request_ids", "token_ids", "accepted_by_position", "drafted_by_position")


def fields_of(record: Any) -> dict[str, Any]:
    """A record's fields as they are (``asdict`` would copy every configuration)."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def trial_record(trial: Trial) -> TrialRecord:
    return TrialRecord(**_read(TrialRecord, trial))


def timing_record(row: Measurement) -> StoredTiming:
    return StoredTiming(**_read(StoredTiming, row))


def output_record(row: Output) -> StoredOutput:
    return StoredOutput(**_read(StoredOutput, row))


def timing_row(trial_id: int, position: int, timing: StoredTiming) -> dict[str, Any]:
    return {"trial_id": trial_id, "position": position, **_storable(timing)}


def output_row(trial_id: int, ordinal: int, output: StoredOutput) -> dict[str, Any]:
    """A margin that is not finite (a token outside the support) is stored as its text in
    ``detail``.
    """
    row = {"trial_id": trial_id, "ordinal": ordinal, **_storable(output)}
    if output.margin is not None and not math.isfinite(output.margin):
        row["margin"] = None
        row["detail"] = f"{output.detail} margin {output.margin}".strip()
    return row


def _read(kind: type[Any], row: Any) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(kind)}
    return {name: tuple(v) if name in _TUPLES else v for name, v in values.items()}


def _storable(record: Any) -> dict[str, Any]:
    return {name: list(v) if name in _TUPLES else v for name, v in fields_of(record).items()}
