"""Time of the row-stable product by number of rows, beside torch's, at SmolLM2-135M's shapes.

Run: ``python -P benchmarks/kernels.py``. Each cell is the median over rounds in which the
candidates take turns, on weights larger than the last-level cache: a call reads its weights from
memory, as a decoding step does.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from draftsmith.kernels.backend import describe
from draftsmith.kernels.linear import linear
from draftsmith.kernels.panels import Weight, pack_panels

SHAPES = [(576, 576), (576, 1536), (1536, 576), (576, 49152)]  # (K, N)
ROWS = [1, 2, 4, 8, 16, 32, 64, 256]
WEIGHT_BYTES = 64 << 20
ROUNDS = 7
# torch's bf16 product of many rows takes seconds a cell; past this it is left out.
MOST_TORCH_BF16 = 1 << 30

Product = Callable[[torch.Tensor, Any], torch.Tensor]  # the second: what its list of weights holds


def _torch_bf16(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x.bfloat16(), weight).float()


def _milliseconds(
    candidates: dict[str, tuple[Product, Sequence[Weight]]], x: torch.Tensor
) -> dict[str, float]:
    """Median time of one call, the candidates interleaved; the first round warms up."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for round_index in range(ROUNDS + 1):
        for name, (product, weights) in candidates.items():
            start = time.perf_counter()
            for weight in weights:
                product(x, weight)
            elapsed = (time.perf_counter() - start) * 1e3 / len(weights)
            if round_index:
                samples[name].append(elapsed)
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> None:
    info = describe()
    print(f"backend {info.backend} ({info.reason}), {torch.get_num_threads()} threads, ms a call")
    for depth, outputs in SHAPES:
        print(f"\nK={depth} N={outputs}")
        print(f"{'M':>4} {'ours bf16':>10} {'x T(1)':>7} {'torch bf16':>11} {'torch fp32':>11}")
        count = max(1, WEIGHT_BYTES // (depth * outputs * 2))
        narrow = [torch.randn(outputs, depth).bfloat16() for _ in range(count)]
        panels = [pack_panels(weight) for weight in narrow]  # as the engine holds them
        wide = [weight.float() for weight in narrow]
        one_row = 0.0
        for rows in ROWS:
            candidates: dict[str, tuple[Product, Sequence[Weight]]] = {
                "ours": (linear, panels),
                "fp32": (functional.linear, wide),
            }
            if rows * depth * outputs * count < MOST_TORCH_BF16:
                candidates["bf16"] = (_torch_bf16, narrow)
            times = _milliseconds(candidates, torch.randn(rows, depth))
            one_row = one_row or times["ours"]
            theirs = f"{times['bf16']:11.3f}" if "bf16" in times else f"{'-':>11}"
            print(
                f"{rows:4} {times['ours']:10.3f} {times['ours'] / one_row:7.2f}"
                f" {theirs} {times['fp32']:11.3f}",
                flush=True,
            )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
