"""Durations as the user writes them: ``90s``, ``10m``, ``1h30m``, ``600``."""

from __future__ import annotations

import math
import re

from draftsmith.tuner.errors import BudgetError

UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0}
MIN_BUDGET_S = 10.0
EXAMPLES = "write for example 10m, 90s or 1h30m"

_PART = re.compile(r"(\d+(?:\.\d+)?)(h|m|s)", re.ASCII)


def parse_duration(text: str | int | float) -> float:
    """Seconds of ``10m``, ``90s``, ``1h30m`` or a plain number of seconds. BudgetError names what
    is wrong.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise BudgetError(f"budget {text!r} is not a duration: {EXAMPLES}")
    seconds = float(text) if isinstance(text, int | float) else _seconds(text.strip().lower())
    if not math.isfinite(seconds) or seconds <= 0:
        raise BudgetError(f"budget {text!r} must be more than 0: {EXAMPLES}")
    return seconds


def parse_budget(text: str | int | float) -> float:
    """A tuning run's budget in seconds, at least ``MIN_BUDGET_S``. The controller, once it has
    measured stock, raises BudgetError again when this deployment needs more.
    """
    seconds = parse_duration(text)
    if seconds < MIN_BUDGET_S:
        raise BudgetError(
            f"budget {text!r} is {seconds:g} s: no run fits in less than {MIN_BUDGET_S:g} s; "
            f"10m is a usual budget"
        )
    return seconds


def format_duration(seconds: float) -> str:
    """``1h05m``, ``9m30s`` or ``45s``: the inverse of ``parse_duration`` to the second."""
    total = max(0, round(seconds))
    hours, rest = divmod(total, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    if minutes:
        return f"{minutes}m{secs:02d}s" if secs else f"{minutes}m"
    return f"{secs}s"


def _seconds(text: str) -> float:
    negative = text.startswith("-")
    body = text.lstrip("+-")
    try:
        value = float(body)
    except ValueError:
        parts = _PART.findall(body)
        if not parts or "".join(number + unit for number, unit in parts) != body:
            raise BudgetError(f"budget {text!r} is not a duration: {EXAMPLES}") from None
        value = sum(float(number) * UNIT_S[unit] for number, unit in parts)
    return -value if negative else value
