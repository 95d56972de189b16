"""Clocks of the tests: one that is moved by hand, and the processor's."""

from __future__ import annotations

import time


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


class ProcessorClock:
    """Seconds that the processor spent on this process. With one thread that is what a clock on the
    wall shows on an idle machine; others who share the machine do not move it.
    """

    def now(self) -> float:
        return time.process_time()
