"""How many tokens each request may draft in the next step: as many as are expected to pay.

Rule (algorithms.md D5 and D6, after DSpark's scheduler and SmartSpec's goodput): with a_{r,j} the
probability that request r's j-th draft token is reached and accepted, and T(b) the seconds of a
step with b rows, choose the lengths that maximise (R + sum of the a_{r,j} taken) / (T(b) +
drafting). The candidates are taken in descending a_{r,j} and every prefix is looked at, since T is
jagged. A tree is one candidate: all of its nodes for its expected accepted tokens, or none.

Both sides are measured while decoding: T by number of rows, acceptance by request and place in the
block, older steps counting less. What was never tried is taken for cheap and fairly good, so it
gets tried. Decisions follow from earlier steps only, never from the tokens just drafted, so every
verifier stays exact (algorithms.md A0); outputs do not depend on them at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

PRIOR = 0.6  # acceptance of a place never tried, with the weight of so many trials:
PRIOR_WEIGHT = 2.0
KEEP = 0.95  # of the weight of what was seen, a step: half is forgotten after 14
PLACES = 6  # places of the block told apart; later ones share the last
FOLLOW = 0.2  # how fast a step's time follows what is measured
SPIKE = 1.5  # a time over this many times the known one counts as so much: the machine stalled


class StepTimes:
    """Seconds of a step by its number of rows, as measured; straight lines between."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []

    def learn(self, rows: int, seconds: float) -> None:
        place = bisect_left(self._rows, rows)
        if place == len(self._rows) or self._rows[place] != rows:
            self._rows.insert(place, rows)
            self._seconds.insert(place, seconds)
            return
        known = self._seconds[place]
        self._seconds[place] = known + FOLLOW * (min(seconds, SPIKE * known) - known)

    def of(self, rows: int) -> float:
        """Expected seconds. Below the fewest rows seen it is theirs, above the most it goes on
        along the last line, or flat after a single point. 0 before anything was measured.
        """
        known, seconds = self._rows, self._seconds
        if not known:
            return 0.0
        if rows <= known[0] or len(known) == 1:
            return seconds[0]
        right = min(bisect_left(known, rows), len(known) - 1)
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (known[right] - known[left])
        return seconds[left] + max(0.0, slope) * (rows - known[left])


@dataclass(slots=True)
class Acceptance:
    """What became of one request's drafts. ``tried[j]`` and ``kept[j]``: weights of the steps in
    which place j was reached, and accepted; ``whole``: accepted tokens of a whole tree; ``nodes``:
    of the last one.
    """

    tried: list[float] = field(default_factory=lambda: [0.0] * PLACES)
    kept: list[float] = field(default_factory=lambda: [0.0] * PLACES)
    steps: float = 0.0
    whole: float = 0.0
    nodes: int = 0

    def learn(self, drafted: int, accepted: int) -> None:
        """One step, with or without a draft."""
        for values in (self.tried, self.kept):
            for place in range(PLACES):
                values[place] *= KEEP
        self.steps, self.whole = self.steps * KEEP, self.whole * KEEP
        for place in range(min(drafted, accepted + 1)):
            index = min(place, PLACES - 1)
            self.tried[index] += 1.0
            self.kept[index] += float(place < accepted)
        if drafted:
            self.steps += 1.0
            self.whole += accepted
            self.nodes = drafted

    def along(self, length: int) -> list[float]:
        """a_1 .. a_length: probability that the j-th draft token is reached and accepted."""
        product, chain = 1.0, []
        for place in range(length):
            index = min(place, PLACES - 1)
            tried, kept = self.tried[index], self.kept[index]
            product *= (kept + PRIOR * PRIOR_WEIGHT) / (tried + PRIOR_WEIGHT)
            chain.append(product)
        return chain

    def of_tree(self) -> float:
        """Expected accepted tokens of a whole tree."""
        return (self.whole + PRIOR * PRIOR_WEIGHT) / (self.steps + PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """``gain`` expected tokens for ``rows`` rows; ``grant`` is what the drafter may then use."""

    gain: float
    rows: int
    request: int
    grant: int


class DraftBudget:
    """Plans the draft lengths of each step. ``chain``: drafts grow token by token; else a request's
    tree is drafted whole or not at all.
    """

    def __init__(self, *, chain: bool) -> None:
        self._chain = chain
        self._times = StepTimes()
        self._draft_s = 0.0  # seconds a drafted token
        self._seen: dict[int, Acceptance] = {}

    def admit(self, slot: int) -> None:
        """A new request in ``slot``: nothing is known of its acceptance."""
        self._seen[slot] = Acceptance()

    def plan(self, slots: Sequence[int], limits: Sequence[int]) -> list[int]:
        """Draft nodes for each slot, at most its limit."""
        candidates = [
            candidate
            for index, (slot, limit) in enumerate(zip(slots, limits, strict=True))
            for candidate in self._candidates(index, slot, limit)
        ]
        candidates.sort(key=lambda c: (-c.gain / c.rows, c.request))
        rows = len(slots)
        tokens = float(rows)
        best_rate, taken = tokens / max(self._times.of(rows), 1e-9), 0
        drafted = 0
        for count, candidate in enumerate(candidates, start=1):
            rows += candidate.rows
            drafted += candidate.rows
            tokens += candidate.gain
            seconds = self._times.of(rows) + self._draft_s * drafted
            rate = tokens / max(seconds, 1e-9)
            if rate > best_rate:
                best_rate, taken = rate, count
        budgets = [0] * len(slots)
        for candidate in candidates[:taken]:
            budgets[candidate.request] += candidate.grant
        return budgets

    def learn_draft(self, drafted: int, seconds: float) -> None:
        """Proposing ``drafted`` tokens took so long."""
        if drafted:
            self._draft_s += FOLLOW * (seconds / drafted - self._draft_s)

    def learn_step(self, rows: int, seconds: float) -> None:
        """Verifying ``rows`` rows took so long."""
        self._times.learn(rows, seconds)

    def learn_outcome(self, slot: int, drafted: int, accepted: int) -> None:
        self._seen[slot].learn(drafted, accepted)

    def _candidates(self, index: int, slot: int, limit: int) -> list[_Candidate]:
        if limit <= 0:
            return []
        seen = self._seen[slot]
        if self._chain:
            return [_Candidate(gain, 1, index, 1) for gain in seen.along(limit)]
        rows = min(limit, seen.nodes or limit)
        return [_Candidate(min(seen.of_tree(), float(rows)), rows, index, limit)]
