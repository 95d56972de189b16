"""JSON that a user wrote, read strictly, and his values as messages show them."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DIGITS = 300  # more than any float has
SHOWN = 80  # characters of a value in a message


def read_json(text: str) -> Any:
    """The value of a JSON text. ValueError also for a key that stands twice in one object, of which
    Python takes the last, and for a whole number that no knob could hold.
    """
    return json.loads(text, object_pairs_hook=_once, parse_int=_whole)


def shown(value: Any) -> str:
    """``repr`` for a message: cut where it is long, and for whole numbers of any size."""
    if isinstance(value, int) and value.bit_length() > MAX_DIGITS:
        return f"a whole number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def is_number(value: Any) -> bool:
    """Whether it is a finite number that fits a float; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"the key {shown(key)} stands there twice: keep one")
        made[key] = value
    return made


def _whole(digits: str) -> int:
    count = len(digits.removeprefix("-"))
    if count > MAX_DIGITS:
        raise ValueError(f"a whole number of {count} digits is more than anything takes")
    return int(digits)
