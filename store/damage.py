"""Values that no draftsmith wrote into a row: found when the row is loaded, and named.

SQLite takes any value in any column, and a damaged file may hold anything.
"""

from __future__ import annotations

import json
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from sqlalchemy import event, inspect
from sqlalchemy.orm import DeclarativeBase


class DamagedRowError(Exception):
    """Names table, row and column; ``failures.translate`` makes the store's error of it."""

    def __init__(self, row: DeclarativeBase, column: str, value: object) -> None:
        mapper = inspect(type(row))
        held = vars(row)
        keys = ", ".join(f"{key.name} {held.get(key.name)}" for key in mapper.primary_key)
        name = f" (run {held['uuid']})" if "uuid" in held else ""
        text = ascii(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        super().__init__(f"{row.__tablename__}, {keys}{name}: its {column} holds {shown}")


class _Unreadable(NamedTuple):
    """Stands for the text of a JSON column that is none."""

    text: object


def read_json(text: Any) -> Any:
    """A JSON column's value; text that is no JSON fails when its row is checked, by name."""
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return _Unreadable(text)


def check_rows(base: type[DeclarativeBase]) -> None:
    """Have every row of ``base``'s tables checked as it is loaded: DamagedRowError where a value is
    not of its column's type.
    """

    @event.listens_for(base, "load", propagate=True)
    def on_load(row: DeclarativeBase, _context: Any) -> None:
        held = vars(row)
        for name, kinds in _kinds(type(row)).items():
            value = held.get(name)
            if name in held and (isinstance(value, _Unreadable) or not isinstance(value, kinds)):
                raise DamagedRowError(
                    row, name, value[0] if isinstance(value, _Unreadable) else value
                )


@cache
def _kinds(model: type[DeclarativeBase]) -> dict[str, tuple[type, ...]]:
    """The types that each column of a model may hold, from its annotations."""
    hints = get_type_hints(model)
    made = {}
    for column in inspect(model).columns:
        (inner,) = get_args(hints[column.key])
        parts = get_args(inner) if isinstance(inner, UnionType) else (inner,)
        kinds = tuple(object if part is Any else get_origin(part) or part for part in parts)
        made[column.key] = (*kinds, int) if float in kinds else kinds
    return made
