"""A clock that tests move by hand."""

from __future__ import annotations


class FakeClock:
    """``now`` is what ``advance`` made it; every ``now`` call may also cost ``tick_s`` seconds."""

    def __init__(self, start_s: float = 0.0, *, tick_s: float = 0.0) -> None:
        self._now_s = start_s
        self._tick_s = tick_s

    def now(self) -> float:
        self._now_s += self._tick_s
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
