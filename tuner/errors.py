"""Errors of the tuner.

TunerError
├── TunerInputError         the user's value is wrong: names value, limit and fix (exit code 2)
│   └── BudgetError         the budget cannot hold the smallest run; the message says the minimum
├── TunerEnvironmentError   this machine or its workers cannot go on (exit code 3)
└── TunerInterrupted        stopped by the user; the run can be resumed (exit code 130)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TunerError(Exception):
    """Base of every error that the tuner raises on purpose."""


class TunerInputError(TunerError):
    """A value from outside is wrong."""


class BudgetError(TunerInputError):
    """The budget is not a duration, or too small for the smallest run."""


class TunerEnvironmentError(TunerError):
    """The workers cannot go on."""


class TunerInterrupted(TunerError):
    """The run was stopped on purpose and can be resumed."""


def near_match(name: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for a misspelt name, else the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names)}."
