"""What a kernel call moves and launches: formulas of the headers as numbers, and a live count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Bytes that programs load from and store to memory, and kernel launches. A byte that several
    programs load counts for each of them, though a cache may serve it.
    """

    bytes_read: int
    bytes_written: int
    launches: int

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
            launches=self.launches + other.launches,
        )


NOTHING = Cost(bytes_read=0, bytes_written=0, launches=0)


class LaunchCount:
    """Launches by kernel function since the count began."""

    def __init__(self) -> None:
        self.by_function: dict[str, int] = {}

    @property
    def total(self) -> int:
        return sum(self.by_function.values())

    def add(self, function: str) -> None:
        self.by_function[function] = self.by_function.get(function, 0) + 1


_counting: ContextVar[LaunchCount | None] = ContextVar("draftsmith_launch_count", default=None)


@contextmanager
def count_launches() -> Iterator[LaunchCount]:
    """Count the Triton launches made inside the block."""
    count = LaunchCount()
    token = _counting.set(count)
    try:
        yield count
    finally:
        _counting.reset(token)


def note_launch(function: str) -> None:
    """Called by ``launching`` at each launch."""
    count = _counting.get()
    if count is not None:
        count.add(function)
