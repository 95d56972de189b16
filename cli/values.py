"""Values of options, read and checked as they are parsed: each refusal names option, value, limit.

The limits are those of the deployment file (``tuner/deployment_file.py``), so no two commands
differ in them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from draftsmith.cli.errors import CliInputError
from draftsmith.tuner.deployment_file import KEYS, Key, check_value


def number(option: str, key: str | Key) -> Callable[[str], int | float]:
    """A parser of numbers within the limits of a deployment's key; TunerInputError."""
    limits = KEYS[key] if isinstance(key, str) else key

    def parse(text: str) -> int | float:
        checked: int | float = check_value(option, limits, _number(str(text)))
        return checked

    return parse


def named(option: str) -> Callable[[str], str]:
    """A parser of texts; CliInputError for an empty one, which an unset variable leaves."""

    def parse(text: str) -> str:
        if not str(text).strip():
            raise CliInputError(f"{option} is {str(text)!r}: give a value, or drop it")
        return str(text)

    return parse


def path(option: str, *, written: bool = False) -> Callable[[str], Path]:
    """A parser of paths; CliInputError for an empty one, which would mean the working folder, and
    for one to be ``written`` that no text can name again.
    """

    def parse(text: str) -> Path:
        named(option)(text)
        if written and any("\ud800" <= char <= "\udfff" for char in str(text)):
            raise CliInputError(
                f"{option} is {str(text)!r}: it has bytes that are not UTF-8, and no command could "
                "be pasted that names it; give another folder"
            )
        return Path(text)

    return parse


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
