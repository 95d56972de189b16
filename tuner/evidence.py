"""What the measurements say about one configuration: paired times and judged outputs, poolable.

Evidence from several jobs (rungs, repeats, chunks) adds up; each pair comes from one job, so stock
was always measured next to the configuration. A pair is one timed unit: a prompt, or a group run
together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median
from typing import Any, Protocol

from draftsmith.engine.forcing import is_suspect
from draftsmith.engine.job import STOCK


class Timing(Protocol):
    """What the engine's UnitTiming and the store's StoredTiming have in common."""

    @property
    def config(self) -> str: ...
    @property
    def unit(self) -> int: ...
    @property
    def repeat(self) -> int: ...
    @property
    def request_ids(self) -> tuple[str, ...]: ...
    @property
    def category(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def prefill_s(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_drafted(self) -> int: ...
    @property
    def num_accepted(self) -> int: ...


class Output(Protocol):
    """What the engine's OutputRecord and the store's StoredOutput have in common."""

    @property
    def config(self) -> str: ...
    @property
    def request_id(self) -> str: ...
    @property
    def token_ids(self) -> tuple[int, ...]: ...
    @property
    def judgement(self) -> str: ...
    @property
    def num_ties(self) -> int: ...  # positions
    @property
    def position(self) -> int | None: ...
    @property
    def emitted(self) -> int | None: ...
    @property
    def expected(self) -> int | None: ...
    @property
    def margin(self) -> float | None: ...
    @property
    def accepted_by_position(self) -> tuple[int, ...]: ...
    @property
    def drafted_by_position(self) -> tuple[int, ...]: ...


class BadMeasurementError(Exception):
    """A measured value that cannot be scored: the trial is failed with this reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of one unit under stock and under the configuration, each the median over its
    repeats: a stall of a shared machine in one of three or more does not count.
    """

    request_ids: tuple[str, ...]
    category: str
    stock_s: float
    config_s: float
    stock_prefill_s: float
    config_prefill_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StockRecord:
    """What is known of stock: its outputs by request id, and of how many ``positions`` forced stock
    chose otherwise than stock one at a time (``ties``).
    """

    references: Mapping[str, tuple[int, ...]]
    ties: int = 0
    positions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """``pairs`` holds units whose outputs all equal stock's (or passed the distribution gate); the
    others are counted in ``num_unequal_units``. Steps, committed, drafted and accepted tokens are
    over every repeat of the ``pairs``; ``*_by_position`` over the first repeat of every output.
    """

    pairs: tuple[Pair, ...] = ()
    num_unequal_units: int = 0
    num_exact: int = 0
    num_ties: int = 0  # outputs with at least one tie
    num_divergent: int = 0
    num_distribution: int = 0
    divergence: str = ""  # the first divergent output, in words
    num_tied_positions: int = 0
    num_positions: int = 0  # of outputs that were compared token by token
    stock_ties: int = 0
    stock_positions: int = 0
    peak_memory_bytes: int | None = None
    num_committed: int = 0
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()
    drafted_by_position: tuple[int, ...] = ()
    request_ids: frozenset[str] = field(default_factory=frozenset)

    @property
    def num_outputs(self) -> int:
        return self.num_exact + self.num_ties + self.num_divergent + self.num_distribution

    @property
    def suspect(self) -> bool:
        """More ties than stock's own noise explains, over everything that was pooled."""
        return is_suspect(
            self.num_tied_positions, self.num_positions, self.stock_ties, self.stock_positions
        )

    @property
    def tokens_per_step(self) -> float | None:
        return self.num_committed / self.num_steps if self.num_steps else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of drafted tokens that were kept, at each place of the block."""
        counts = zip(self.accepted_by_position, self.drafted_by_position, strict=False)
        return tuple(accepted / drafted for accepted, drafted in counts if drafted)

    def __add__(self, other: Evidence) -> Evidence:
        peaks = [p for p in (self.peak_memory_bytes, other.peak_memory_bytes) if p is not None]
        return replace(
            self,
            pairs=self.pairs + other.pairs,
            num_unequal_units=self.num_unequal_units + other.num_unequal_units,
            num_exact=self.num_exact + other.num_exact,
            num_ties=self.num_ties + other.num_ties,
            num_divergent=self.num_divergent + other.num_divergent,
            num_distribution=self.num_distribution + other.num_distribution,
            divergence=self.divergence or other.divergence,
            num_tied_positions=self.num_tied_positions + other.num_tied_positions,
            num_positions=self.num_positions + other.num_positions,
            stock_ties=max(self.stock_ties, other.stock_ties),
            stock_positions=max(self.stock_positions, other.stock_positions),
            peak_memory_bytes=max(peaks) if peaks else None,
            num_committed=self.num_committed + other.num_committed,
            num_steps=self.num_steps + other.num_steps,
            num_drafted=self.num_drafted + other.num_drafted,
            num_accepted=self.num_accepted + other.num_accepted,
            accepted_by_position=_add(self.accepted_by_position, other.accepted_by_position),
            drafted_by_position=_add(self.drafted_by_position, other.drafted_by_position),
            request_ids=self.request_ids | other.request_ids,
        )


def collect(
    name: str,
    timings: Sequence[Timing],
    outputs: Sequence[Output],
    stock: StockRecord,
    *,
    against: str = STOCK,
    peak_memory_bytes: int | None = None,
) -> Evidence:
    """Evidence about configuration ``name`` in one job's records. Times count where its outputs
    equal stock's references, and the baseline's are as long as those; outputs that are lossless in
    distribution differ by nature, so their seconds are scaled to the baseline's number of tokens.
    BadMeasurementError for a time that is no positive number, an output that is missing, or a
    baseline that was not timed.
    """
    own_outputs = [output for output in outputs if output.config == name]
    equal = {o.request_id for o in own_outputs if _equal(o, stock.references)}
    judged = {o.request_id for o in own_outputs}
    warped = {
        output.request_id
        for output in outputs
        if output.config in (name, against) and output.judgement == "distribution"
    }
    base, own = _by_unit(timings, against), _by_unit(timings, name)
    pairs: list[Pair] = []
    counted: list[Timing] = []
    unequal = 0
    for requests, runs in own.items():
        if requests not in base:
            raise BadMeasurementError(f"{against} was not timed on {', '.join(requests)}")
        missing = [request for request in requests if request not in judged]
        if missing:
            raise BadMeasurementError(f"no output for {', '.join(missing)}")
        base_s = _median_seconds(base[requests], "seconds", against)
        own_s = _median_seconds(runs, "seconds", name)
        scaled = any(request in warped for request in requests)
        if not all(request in equal for request in requests) or not (
            scaled or _as_long_as(stock.references, requests, base[requests])
        ):
            unequal += 1
            continue
        if scaled:
            own_s *= base[requests][0].num_tokens / max(1, runs[0].num_tokens)
        pairs.append(
            Pair(
                request_ids=requests,
                category=runs[0].category,
                stock_s=base_s,
                config_s=own_s,
                stock_prefill_s=_median_seconds(base[requests], "prefill_s", against, zero=True),
                config_prefill_s=_median_seconds(runs, "prefill_s", name, zero=True),
                num_tokens=runs[0].num_tokens,
            )
        )
        counted.extend(runs)
    verdicts = [output.judgement for output in own_outputs]
    divergent = [output for output in own_outputs if output.judgement == "divergent"]
    compared = [output for output in own_outputs if output.judgement != "distribution"]
    return Evidence(
        pairs=tuple(pairs),
        num_unequal_units=unequal,
        num_exact=verdicts.count("exact"),
        num_ties=verdicts.count("tie"),
        num_divergent=len(divergent),
        num_distribution=verdicts.count("distribution"),
        divergence=_describe(divergent[0]) if divergent else "",
        num_tied_positions=sum(output.num_ties for output in compared),
        num_positions=sum(len(output.token_ids) for output in compared),
        stock_ties=stock.ties,
        stock_positions=stock.positions,
        peak_memory_bytes=peak_memory_bytes,
        num_committed=sum(timing.num_tokens for timing in counted),
        num_steps=sum(timing.num_steps for timing in counted),
        num_drafted=sum(timing.num_drafted for timing in counted),
        num_accepted=sum(timing.num_accepted for timing in counted),
        accepted_by_position=_sum(output.accepted_by_position for output in own_outputs),
        drafted_by_position=_sum(output.drafted_by_position for output in own_outputs),
        request_ids=frozenset(judged),
    )


def finite(value: Any, what: str) -> float:
    """``value`` as a finite number; BadMeasurementError for NaN, infinities, None, text."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not math.isfinite(value):
        raise BadMeasurementError(f"{what} is {value!r}, not a finite number")
    return float(value)


def _equal(output: Output, references: Mapping[str, tuple[int, ...]]) -> bool:
    if output.judgement == "distribution":
        return True
    return references.get(output.request_id) == output.token_ids


def _as_long_as(
    references: Mapping[str, tuple[int, ...]], requests: tuple[str, ...], runs: list[Timing]
) -> bool:
    """Every run of the unit made as many tokens as the references hold."""
    wanted = sum(len(references[request]) for request in requests)
    return all(run.num_tokens == wanted for run in runs)


def _by_unit(timings: Sequence[Timing], name: str) -> dict[tuple[str, ...], list[Timing]]:
    units: dict[tuple[str, ...], list[Timing]] = {}
    for timing in timings:
        if timing.config == name:
            units.setdefault(timing.request_ids, []).append(timing)
    return units


def _median_seconds(runs: list[Timing], field_name: str, name: str, *, zero: bool = False) -> float:
    values = [finite(getattr(run, field_name), f"{field_name} of {name}") for run in runs]
    for value in values:
        if value < 0 or (value == 0 and not zero):
            raise BadMeasurementError(f"{field_name} of {name} is {value!r}, not a positive time")
    return median(values)


def _describe(output: Output) -> str:
    text = f"{output.request_id} at position {output.position}"
    if output.emitted is not None:
        text += f": emitted {output.emitted}, stock's is {output.expected}"
    if output.margin is not None:
        text += f", margin {output.margin:.3g}"
    return text


def _add(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(left, right, fillvalue=0))


def _sum(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    total: tuple[int, ...] = ()
    for row in rows:
        total = _add(total, row)
    return total
