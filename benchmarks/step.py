"""Time of one step of SmolLM2-135M by number of rows, with plain bf16 weights and with 12 bits.

Run: ``python -P benchmarks/step.py``. Two threads, a committed prefix of 200 rows, 20 rounds in
which both forms take turns: minimum and median of forward and head in ms, and the median of the
ratios.
"""

import time
from statistics import median
from typing import Literal

import torch

from draftsmith.engine.batch import causal_rows
from draftsmith.engine.cache import KVCache
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.loading import load_target
from draftsmith.engine.model.model import Model

PREFIX, ROUNDS, ROWS = 200, 20, (1, 2, 3, 4, 6, 8, 16, 32)
FORMS: tuple[Literal["plain", "bf12"], ...] = ("plain", "bf12")


def main() -> None:
    torch.set_num_threads(2)
    sides = [_side(form) for form in FORMS]
    print("rows  plain: forward min, median  head min, median   bf12: the same   plain / bf12")
    for width in ROWS:
        times: list[list[tuple[float, float]]] = [[] for _ in sides]
        for _ in range(ROUNDS):
            for (model, cache, slot), kept in zip(sides, times, strict=True):
                rows = causal_rows(slot, list(range(100, 100 + width)), PREFIX)
                begin = time.perf_counter()
                hidden = model.forward(rows, cache)
                middle = time.perf_counter()
                model.head(hidden.last[0])
                kept.append((middle - begin, time.perf_counter() - middle))
        plain, packed = times
        ratio = median(sum(a) / sum(b) for a, b in zip(plain, packed, strict=True))
        print(f"{width:4d}  {_cells(plain)}   {_cells(packed)}   {ratio:.2f}", flush=True)


def _side(form: Literal["plain", "bf12"]) -> tuple[Model, KVCache, int]:
    """The model with its cache and the slot that holds the prefix."""
    model = load_target(TargetRef(path="smollm2", weights=form)).model
    print(f"{form}: {model.info.weight_bytes / 1e6:.0f} MB of weights")
    cache = model.new_cache(num_slots=1, capacity=512)
    slot = cache.allocate()
    model.forward(causal_rows(slot, list(range(1000, 1000 + PREFIX)), 0), cache)
    cache.keep(slot, range(PREFIX))
    return model, cache, slot


def _cells(times: list[tuple[float, float]]) -> str:
    parts = [[pair[part] * 1e3 for pair in times] for part in (0, 1)]
    return "  ".join(f"{min(part):5.1f}, {median(part):5.1f}" for part in parts)


if __name__ == "__main__":
    main()
