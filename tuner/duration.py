"""Durations as the user writes them: ``90s``, ``10m``, ``1h30m``, ``600``."""

from __future__ import annotations

import math
import re

from draftsmith.tuner.errors import BudgetError
from draftsmith.tuner.strict_json import is_number, shown

UNIT_S = {"h": 3600.0, "m": 60.0, "s": 1.0}
MIN_BUDGET_S = 10.0
MAX_BUDGET_S = 30 * 24 * 3600.0
EXAMPLES = "write for example 10m, 90s or 1h30m"

_PART = re.compile(r"(\d+(?:\.\d+)?)(h|m|s)", re.ASCII)
_PLAIN = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)


def parse_duration(text: str | int | float) -> float:
    """Seconds of ``10m``, ``90s``, ``1h30m`` or a plain number of seconds. BudgetError names what
    is wrong.
    """
    unreal = isinstance(text, float) and not math.isfinite(text)
    if isinstance(text, bool) or not isinstance(text, str | int | float) or unreal:
        raise BudgetError(f"budget {shown(text)} is not a duration: {EXAMPLES}")
    if isinstance(text, str):
        seconds = _seconds(text)
    else:
        seconds = float(text) if is_number(text) else math.inf if text > 0 else -math.inf
    if seconds <= 0:
        raise BudgetError(f"budget {shown(text)} must be more than 0: {EXAMPLES}")
    return seconds


def parse_budget(text: str | int | float) -> float:
    """A tuning run's budget in seconds, from ``MIN_BUDGET_S`` to ``MAX_BUDGET_S``. The controller,
    once it has measured stock, raises BudgetError again when this deployment needs more.
    """
    seconds = parse_duration(text)
    if seconds < MIN_BUDGET_S:
        raise BudgetError(
            f"budget {shown(text)} is {seconds:g} s: no run fits in less than {MIN_BUDGET_S:g} s; "
            f"10m is a usual budget"
        )
    if seconds > MAX_BUDGET_S:
        raise BudgetError(
            f"budget {shown(text)} is too long: a run gets at most {MAX_BUDGET_S / 3600:g}h "
            "(30 days); 10m is a usual budget"
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
    lowered = text.strip().lower()
    body = lowered.removeprefix("-") if lowered.startswith("-") else lowered.removeprefix("+")
    if _PLAIN.fullmatch(body):
        value = float(body)
    else:
        parts = _PART.findall(body)
        if not parts or "".join(number + unit for number, unit in parts) != body:
            raise BudgetError(f"budget {shown(text)} is not a duration: {EXAMPLES}")
        value = sum(float(number) * UNIT_S[unit] for number, unit in parts)
    return -value if lowered.startswith("-") else value
