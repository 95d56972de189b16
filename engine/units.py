"""Timed units: a request alone at concurrency 1, else a group of requests that run together.

Whoever cuts requests for measuring cuts by these rules, so that a chunk holds whole units and none
runs under another load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

GROUP_FACTOR = 2  # requests of a group, in concurrencies: slots are refilled at least once

Item = TypeVar("Item")


def unit_size(concurrency: int) -> int:
    """Requests of one unit."""
    return 1 if concurrency == 1 else GROUP_FACTOR * concurrency


def two_units(concurrency: int) -> int:
    """Fewest requests that make two units: a speed-up from one alone has no interval."""
    return 2 if concurrency == 1 else unit_size(concurrency) + concurrency


def in_pieces(items: Sequence[Item], size: int, least: int) -> list[tuple[Item, ...]]:
    """Pieces of ``size``; a last one of fewer than ``least`` joins the one before it, since fewer
    requests than the concurrency would run under another load.
    """
    pieces = [tuple(items[start : start + size]) for start in range(0, len(items), size)]
    if len(pieces) > 1 and len(pieces[-1]) < least:
        tail = pieces.pop()
        pieces[-1] += tail
    return pieces
