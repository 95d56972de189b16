"""Wall-clock seconds of a run by phase, over all its restarts; time while no driver ran is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftsmith.tuner.progress import Phase


class Stopwatch:
    """``spent`` are the seconds of earlier drivers by phase, ``budget_s`` the whole run's."""

    def __init__(
        self, clock: Callable[[], float], budget_s: float, spent: Mapping[str, float]
    ) -> None:
        self._clock = clock
        self._budget_s = budget_s
        self._spent = dict(spent)
        self._phase: Phase = "baseline"
        self._since = clock()

    def enter(self, phase: Phase) -> None:
        """Time from now on belongs to ``phase``."""
        self._spent = self.by_phase()
        self._since = self._clock()
        self._phase = phase

    def by_phase(self) -> dict[str, float]:
        """Seconds so far, of this driver and those before."""
        running = max(0.0, self._clock() - self._since)
        return {**self._spent, self._phase: self._spent.get(self._phase, 0.0) + running}

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def elapsed_s(self) -> float:
        return sum(self.by_phase().values())

    @property
    def left_s(self) -> float:
        return max(0.0, self._budget_s - self.elapsed_s)
