"""Compaction of accepted cache rows, in place, in all layers.

k, v: [layers, slots, kv_heads, capacity, head_dim]; row ``start + i`` of ``slot`` becomes what row
``start + rows[i]`` was. Overlap-safe (sources are read before any is written). Bytes moved:
2 (k and v) * 2 (read and write) * layers * kv_heads * len(rows) * head_dim * element size.
Result is a copy: no tolerance.
"""

from collections.abc import Sequence

import torch

from draftsmith.kernels.gather_cache.reference import gather_cache_reference


def gather_cache(
    k: torch.Tensor, v: torch.Tensor, slot: int, start: int, rows: Sequence[int]
) -> None:
    gather_cache_reference(k, v, slot, start, rows)


__all__ = ["gather_cache"]
