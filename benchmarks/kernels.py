"""Time of the row-stable product by number of rows, beside torch's, at SmolLM2-135M's shapes; and
of its head's best tokens, with logits and without.

Run: ``python -P benchmarks/kernels.py [products | head]``. Each cell is the median over rounds in
which the candidates take turns, on weights larger than the last-level cache: a call reads its
weights from memory, as a decoding step does.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from draftsmith.kernels.backend import describe
from draftsmith.kernels.bf12_gemv import commonest, high_byte_counts, pack
from draftsmith.kernels.draft_head import draft_head
from draftsmith.kernels.linear import linear
from draftsmith.kernels.panels import Weight, pack_panels
from draftsmith.kernels.top_k import top_k

SHAPES = [(576, 576), (576, 1536), (1536, 576), (576, 49152)]  # (K, N)
ROWS = [1, 2, 4, 8, 16, 32, 64, 256]
HEAD_DEPTH = 576
HEAD_SIZES = [4096, 49152]  # a draft vocabulary, and the whole
HEAD_ROWS = [1, 2, 4, 8, 16, 64]
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


def _with_logits(count: int, with_log_sum: bool) -> Product:
    def run(x: torch.Tensor, weight: Weight) -> torch.Tensor:
        logits = linear(x, weight)
        if with_log_sum:
            logits.logsumexp(-1)
        columns = top_k(logits, count)
        return columns if count == 1 else logits.gather(1, columns)

    return run


def _without(count: int, with_log_sum: bool) -> Product:
    return lambda x, weight: draft_head(x, weight, count, with_log_sum=with_log_sum).columns


def head_table() -> None:
    """Arg-max, and the best eight with the log-sum: by way of logits, and without them."""
    tasks = {"arg-max": (1, False), "top 8, log-sum": (8, True)}
    for outputs in HEAD_SIZES:
        count = max(1, WEIGHT_BYTES // (HEAD_DEPTH * outputs * 2))
        narrow = [(torch.randn(outputs, HEAD_DEPTH) / 24).bfloat16() for _ in range(count)]
        forms: dict[str, list[Weight]] = {
            "bf16": [pack_panels(weight) for weight in narrow],
            "bf12": [pack(weight, commonest(high_byte_counts(weight))[0]) for weight in narrow],
        }
        print(f"\nhead K={HEAD_DEPTH} N={outputs}: ms with logits, ms without, ratio")
        print(f"{'M':>4} {'weight':>6} " + " ".join(f"{task:^24}" for task in tasks))
        for rows in HEAD_ROWS:
            for form, weights in forms.items():
                cells = []
                for arguments in tasks.values():
                    candidates = {
                        "with": (_with_logits(*arguments), weights),
                        "without": (_without(*arguments), weights),
                    }
                    times = _milliseconds(candidates, torch.randn(rows, HEAD_DEPTH))
                    ratio = times["with"] / times["without"]
                    cells.append(f"{times['with']:9.3f} {times['without']:7.3f} {ratio:6.3f}")
                print(f"{rows:4} {form:>6} " + " ".join(cells), flush=True)


def product_table() -> None:
    """The product by number of rows, beside torch's."""
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


def main(tables: Sequence[str]) -> None:
    info = describe()
    print(f"backend {info.backend} ({info.reason}), {torch.get_num_threads()} threads, ms a call")
    if "products" in tables:
        product_table()
    if "head" in tables:
        head_table()


if __name__ == "__main__":
    with torch.inference_mode():
        main(sys.argv[1:] or ("products", "head"))
