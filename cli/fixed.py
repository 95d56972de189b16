"""``--fix KNOB=VALUE``: knobs that a run holds at one value, as the deployment's ``fixed`` section.

The limits that depend on the model are checked with the deployment; here a knob that cannot be held
and a value that is none of the knob's are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from draftsmith.cli.errors import CliInputError
from draftsmith.tuner.errors import near_match
from draftsmith.tuner.knobs import FIXABLE, KNOBS, Knob
from draftsmith.tuner.space import knob_table


def fixed_flags(texts: Iterable[str]) -> dict[str, Any]:
    """Flags of ``load_deployment``, such as ``{"fixed.tree": "chain"}``. CliInputError names the
    option with its knob, its value and what the knob may be.
    """
    flags: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise CliInputError(f"--fix {text!r} is not KNOB=VALUE: write for example tree=chain")
        if name not in FIXABLE:
            raise CliInputError(
                f"--fix {text!r}: knob {name!r} cannot be fixed.{near_match(name, FIXABLE)}"
            )
        if f"fixed.{name}" in flags:
            raise CliInputError(f"--fix {text!r}: knob {name!r} is fixed twice: give it once")
        try:
            flags[f"fixed.{name}"] = _parsed(KNOBS[name], value)
        except ValueError:
            raise CliInputError(
                f"--fix {text!r}: knob {name!r} cannot be {value!r}; it may be {_allowed(name)}"
            ) from None
    return flags


def _parsed(knob: Knob, value: str) -> Any:
    """ValueError where the text is no value of the knob's kind."""
    if knob.kind == "choice":
        if value not in knob.choices:
            raise ValueError(value)
        return value
    if knob.kind == "ints":  # 2,3 or [2, 3]; [] is none
        inner = value.removeprefix("[").removesuffix("]").strip()
        return [int(item) for item in inner.split(",")] if inner else []
    return float(value) if knob.kind == "float" else int(value)


def _allowed(name: str) -> str:
    return next(row["values"] for row in knob_table() if row["name"] == name)
