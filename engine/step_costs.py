"""What one verify step costs the target, by batch and rows, against what the machine allows.

The table T(B, n) times the model alone: a forward of ``n`` rows for each of ``B`` requests, and the
head over them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from draftsmith.engine.batch import causal_rows, real_rows
from draftsmith.engine.cache import KVCache
from draftsmith.engine.decode import prefill
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.model.model import Model
from draftsmith.engine.timing import Clock
from draftsmith.engine.types import RowBatch

BATCHES = (1, 2, 4, 8)
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 200  # committed rows of each request
BANDWIDTH_BYTES = 512 * 2**20  # well beyond any cache
PEAK_SIZE = 1536  # rows and columns of the square product that measures arithmetic
SPREAD = 7919  # a prime: token ids that repeat late


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Medians over the rounds; ``layers_s`` is the forward up to the head's norm."""

    batch: int
    rows: int
    layers_s: float
    head_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What no step can beat: every weight read once, at the best rate seen. ``layers_s`` and
    ``head_s`` are those bytes over ``bytes_per_s``; the cache's bytes are not counted.
    ``flops_per_s`` is the best rate of a square fp32 product.
    """

    bytes_per_s: float
    flops_per_s: float
    layers_bytes: int
    head_bytes: int

    @property
    def layers_s(self) -> float:
        return self.layers_bytes / self.bytes_per_s

    @property
    def head_s(self) -> float:
        return self.head_bytes / self.bytes_per_s


@torch.inference_mode()
def step_table(
    model: Model,
    clock: Clock,
    *,
    batches: Sequence[int] = BATCHES,
    rows: Sequence[int] = ROWS,
    rounds: int = 7,
) -> list[StepCost]:
    """Time every (batch, rows) in turn, ``rounds`` times, after a round that is not counted."""
    if rounds < 1:
        raise EngineInputError(f"rounds is {rounds}; give 1 or more")
    context = min(CONTEXT, model.info.max_positions - max(rows))
    if context < 1:
        raise EngineInputError(
            f"{model.info.name} has {model.info.max_positions} positions: too few for a step of"
            f" {max(rows)} rows"
        )
    cache = model.new_cache(num_slots=max(batches), capacity=context + max(rows))
    slots = [cache.allocate() for _ in range(max(batches))]
    for slot in slots:
        prefill(model, cache, slot, _token_ids(context, slot, model.info.vocab_size))
    shapes = [(batch, count) for batch in batches for count in rows]
    steps = {shape: _rows_of(model, cache, slots[: shape[0]], shape[1]) for shape in shapes}
    seconds: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for number in range(rounds + 1):
        start = number * len(shapes) // (rounds + 1)
        for shape in (*shapes[start:], *shapes[:start]):
            begin = clock.now()
            hidden = model.forward(steps[shape], cache)
            middle = clock.now()
            model.head(real_rows(hidden.last, steps[shape].widths))
            end = clock.now()
            if number:
                seconds[shape].append((middle - begin, end - middle))
    return [
        StepCost(
            batch=batch,
            rows=count,
            layers_s=median(layers for layers, _ in seconds[batch, count]),
            head_s=median(head for _, head in seconds[batch, count]),
        )
        for batch, count in shapes
    ]


def measure_floor(model: Model, clock: Clock, *, rounds: int = 5) -> Floor:
    """Best read rate and product rate of this machine now, and the bytes that a step must read."""
    cache = model.new_cache(num_slots=1, capacity=1)
    read = torch.ones(BANDWIDTH_BYTES // 4, device=cache.device)
    square = torch.ones(PEAK_SIZE, PEAK_SIZE, device=cache.device)
    return Floor(
        bytes_per_s=BANDWIDTH_BYTES / _fastest(lambda: read.sum(), clock, rounds),
        flops_per_s=2 * PEAK_SIZE**3 / _fastest(lambda: square @ square, clock, rounds),
        layers_bytes=model.info.layers_bytes,
        head_bytes=model.info.head_bytes,
    )


def _rows_of(model: Model, cache: KVCache, slots: Sequence[int], count: int) -> RowBatch:
    """``count`` new rows in a chain for each slot."""
    each = [
        causal_rows(
            slot, _token_ids(count, slot + count, model.info.vocab_size), cache.lengths[slot]
        )
        for slot in slots
    ]
    return RowBatch(
        slots=tuple(slots),
        token_ids=torch.cat([rows.token_ids for rows in each]),
        positions=torch.cat([rows.positions for rows in each]),
        widths=(count,) * len(each),
    )


def _token_ids(count: int, seed: int, vocab_size: int) -> list[int]:
    return [(seed + 1 + index) * SPREAD % vocab_size for index in range(count)]


def _fastest(work: Callable[[], object], clock: Clock, rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        begin = clock.now()
        work()
        times.append(clock.now() - begin)
    return min(times[1:])
