"""Time of one step of SmolLM2-135M by number of rows: forward and head, minimum and median in ms.

Run: ``python -P benchmarks/step.py``. Two threads, a committed prefix of 200 rows, 12 rounds.
"""

import statistics
import time

import torch

from draftsmith.engine.batch import causal_rows
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.loading import load_target

PREFIX, ROUNDS, ROWS = 200, 12, (1, 4, 8, 16)


def main() -> None:
    torch.set_num_threads(2)
    model = load_target(TargetRef(path="smollm2")).model
    cache = model.new_cache(num_slots=1, capacity=512)
    slot = cache.allocate()
    model.forward(causal_rows(slot, list(range(1000, 1000 + PREFIX)), 0), cache)
    cache.keep(slot, range(PREFIX))
    print("rows  forward min, median  head min, median (ms)")
    for width in ROWS:
        rows = causal_rows(slot, list(range(100, 100 + width)), PREFIX)
        forward: list[float] = []
        head: list[float] = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            hidden = model.forward(rows, cache)
            middle = time.perf_counter()
            model.head(hidden.last[0])
            forward.append((middle - begin) * 1e3)
            head.append((time.perf_counter() - middle) * 1e3)
        cells = [min(forward), statistics.median(forward), min(head), statistics.median(head)]
        print(f"{width:4d}  " + ", ".join(f"{cell:.1f}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
