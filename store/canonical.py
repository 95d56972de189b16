"""One spelling for each JSON value, so that equal configurations hash equal.

Keys sorted, no spaces, floats rounded to 12 significant digits (0.1 + 0.2 and 0.3 are one value),
integral floats written as integers (4.0 is 4), tuples written as lists. NaN and infinities are
refused.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from draftsmith.store.errors import StoreInputError

SIGNIFICANT_DIGITS = 12
_EXACT_INTEGERS = 2.0**53


def canonical_json(value: Any) -> str:
    """The canonical text of ``value``; StoreInputError names the place that JSON cannot hold."""
    return json.dumps(_normal(value, "$"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def fingerprint(value: Any) -> str:
    """sha256 of the canonical text, 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def plain_json(value: Any) -> Any:
    """``value`` as JSON types only (tuples become lists), numbers untouched; StoreInputError as
    above.
    """
    _normal(value, "$")
    return json.loads(json.dumps(value))


def _normal(value: Any, place: str) -> Any:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise StoreInputError(
                f"{place} is {value}: JSON holds finite numbers only; pass null instead"
            )
        rounded = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
        return int(rounded) if rounded.is_integer() and abs(rounded) < _EXACT_INTEGERS else rounded
    if isinstance(value, list | tuple):
        return [_normal(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise StoreInputError(
                    f"{place} has the key {key!r}: JSON keys are strings; use str(key)"
                )
        return {key: _normal(item, f"{place}.{key}") for key, item in value.items()}
    raise StoreInputError(
        f"{place} is a {type(value).__name__}: only null, booleans, numbers, strings, lists and "
        "string-keyed mappings can be stored; convert it first"
    )
