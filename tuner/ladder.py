"""Increasing fidelity: which prompts each rung adds, and which configuration climbs next.

Rung 0 is a few prompts spread over the categories, rung 1 more, rung 2 all tuning prompts. Rungs
add prompts to those of the rung below, and evidence is pooled, so nothing is measured twice.
Promotion is asynchronous successive halving: one in ``ETA`` of those that finished a rung climbs,
by the upper end of the interval; whoever cannot beat the best one's lower end, or stock, stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from draftsmith.engine.types import SpecConfig
from draftsmith.engine.units import unit_size
from draftsmith.tuner.evidence import Evidence
from draftsmith.tuner.objective import Score
from draftsmith.tuner.result import Interval
from draftsmith.tuner.space import simplicity

ETA = 3
CLOSE = 0.85  # share of the best speed from which a bad first measurement may explain the rest
NEAR = 0.01  # within this share of the best speed the simpler configuration wins
RUNG_PROMPTS = (4, 10)
RUNG_UNITS = (2, 4)  # fewest timed units of a rung when requests run in groups


@dataclass(slots=True)
class Climber:
    """One configuration on the ladder. ``rung`` is the highest finished one (-1: none), ``score``
    is over everything measured so far, ``busy`` while a job of it is queued or running.
    """

    config: SpecConfig
    rung: int = -1
    evidence: Evidence = field(default_factory=Evidence)
    score: Score | None = None
    busy: bool = False
    failed: str = ""  # why its measuring failed; it does not climb further
    pinned: bool = False  # climbs whatever its score (the incumbent)

    stopped: bool = False  # lost so clearly that its job ended early

    @property
    def interval(self) -> Interval | None:
        """Its speed-up's interval; None unless feasible."""
        if self.failed or self.score is None or not self.score.feasible:
            return None
        return self.score.interval

    @property
    def feasible(self) -> bool:
        return self.interval is not None

    @property
    def ratio(self) -> float:
        return self.interval.ratio if self.interval else 0.0

    @property
    def low(self) -> float:
        return self.interval.low if self.interval else 0.0

    @property
    def high(self) -> float:
        return self.interval.high if self.interval else 0.0


def rung_slices(num_prompts: int, concurrency: int) -> tuple[range, ...]:
    """The prompts that each rung adds, as ranges over the tuning prompts in their spread order:
    whole timed units, and never a rest too small to fill the concurrency.
    """
    ends: list[int] = []
    group = unit_size(concurrency)
    for prompts, units in zip(RUNG_PROMPTS, RUNG_UNITS, strict=True):
        size = math.ceil(max(prompts, units * group) / group) * group
        if size + concurrency <= num_prompts and size > (ends[-1] if ends else 0):
            ends.append(size)
    ends.append(num_prompts)
    starts = [0, *ends[:-1]]
    return tuple(range(start, end) for start, end in zip(starts, ends, strict=True))


def next_to_climb(climbers: Iterable[Climber], num_rungs: int) -> Climber | None:
    """Who is measured on its next rung now, or None. Higher rungs first: they end the search
    sooner.
    """
    everyone = list(climbers)
    for climber in everyone:
        idle = climber.feasible and not climber.busy
        if climber.pinned and idle and climber.rung + 1 < num_rungs:
            return climber
    best_low = max([climber.low for climber in everyone if climber.rung > 0], default=1.0)
    for rung in range(num_rungs - 2, -1, -1):
        finished = [c for c in everyone if not c.pinned and c.rung >= rung]
        climbed = [c for c in finished if c.rung > rung or (c.rung == rung and c.busy)]
        if len(climbed) >= len(finished) // ETA:
            continue
        waiting = [c for c in finished if c.rung == rung and not c.busy and _stands(c, best_low)]
        if waiting:
            return max(waiting, key=lambda c: c.high)
    return None


def fastest_below_the_top(
    climbers: Iterable[Climber], num_rungs: int, *, idle: bool = False
) -> Climber | None:
    """The fastest that has not reached the top (``idle``: and is not being measured), unless one
    that has is faster already. Its way to the top is the last thing that the search owes.
    """
    standing = [c for c in climbers if _stands(c, 1.0)]
    below = [c for c in standing if c.rung + 1 < num_rungs and not (idle and c.busy)]
    if not below:
        return None
    best = max(below, key=lambda c: c.ratio)
    top = max((c.ratio for c in standing if c.rung + 1 == num_rungs), default=0.0)
    return best if best.ratio > top else None


def contender(climbers: Iterable[Climber], num_rungs: int) -> Climber | None:
    """Once nothing is left to propose: of those below the top that are close to the fastest one
    there and may still prove faster, the most promising.
    """
    standing = [c for c in climbers if _stands(c, 1.0)]
    top = max((c.ratio for c in standing if c.rung + 1 == num_rungs), default=0.0)
    able = [c for c in standing if c.rung + 1 < num_rungs and not c.busy and c.high > top]
    able = [c for c in able if c.ratio > CLOSE * top]
    return max(able, key=lambda c: c.high, default=None)


def ranking(climbers: Iterable[Climber]) -> list[Climber]:
    """Feasible configurations that beat stock by more than one per cent on the tuning prompts, best
    first: those that were measured on more prompts come first, and within one per cent of the best
    the simplest one leads (off is simpler than all).
    One that time kept on a lower rung takes the lead where both its speed-up and the lower end of
    its interval are above the leader's.
    """
    winners = [c for c in climbers if c.feasible and c.ratio > 1.0 + NEAR]
    ordered: list[Climber] = []
    for rung in sorted({c.rung for c in winners}, reverse=True):
        ordered.extend(_by_speed([c for c in winners if c.rung == rung]))
    for overtaker in sorted(ordered[1:], key=lambda c: -c.low):
        leader = ordered[0]
        if overtaker.low > leader.low and overtaker.ratio > leader.ratio * (1 + NEAR):
            ordered.remove(overtaker)
            return [overtaker, *ordered]
    return ordered


def _by_speed(group: Sequence[Climber]) -> list[Climber]:
    left = sorted(group, key=lambda c: -c.ratio)
    ordered: list[Climber] = []
    while left:
        near = [c for c in left if c.ratio >= left[0].ratio * (1 - NEAR)]
        chosen = min(near, key=lambda c: (simplicity(c.config), -c.ratio))
        ordered.append(chosen)
        left.remove(chosen)
    return ordered


def _stands(climber: Climber, best_low: float) -> bool:
    return climber.feasible and not climber.stopped and climber.high > max(1.0, best_low)
