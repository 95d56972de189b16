"""Compaction of accepted cache rows, in place, in all layers.

k and v [L, S, Hkv, C, D], a head's rows dense. For each sequence b the rows ``starts[b] +
rows[b, i]``, i < counts[b], of slot ``slots[b]`` move to ``starts[b] + i``. All sources are read
before any target is written. Slots of one call differ.

Bytes: 2 (k and v) * 2 (read and write) * L * Hkv * kept rows * D * element size, and a few indices
(``cost``); floor: those over the memory's bandwidth. Tolerance: none, a copy.

Why a kernel on the GPU: plain torch takes four launches a sequence and a temporary; ``triton.py``
takes one for the batch, and its indices may come from a kernel that never told the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.kernels.backend import form_for
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.gather_cache.cost import cost
from draftsmith.kernels.gather_cache.reference import (
    gather_cache_ragged_reference,
    gather_cache_reference,
)


def gather_cache(
    k: torch.Tensor, v: torch.Tensor, slot: int, start: int, rows: Sequence[int]
) -> None:
    """One sequence, whose indices the host knows."""
    if not rows:
        return
    if form_for("gather_cache", k) != "triton":
        return gather_cache_reference(k, v, slot, start, rows)
    # One copy to the device, not four: the numbers and the rows lie behind each other.
    numbers = torch.tensor([slot, start, len(rows), *rows], dtype=torch.int32, device=k.device)
    slots, starts, counts = numbers[0:1], numbers[1:2], numbers[2:3]
    gather_cache_ragged(k, v, slots, starts, numbers[None, 3:], counts)


def gather_cache_ragged(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """``rows`` int32 ``[B, R]``, ``slots``, ``starts`` and ``counts`` int32 ``[B]``, all on the
    cache's device, where their values are not checked: the host does not know them.
    """
    _check(k, v, slots, starts, rows, counts)
    if form_for("gather_cache", k) == "triton":
        from draftsmith.kernels.gather_cache.triton import gather_cache_triton

        gather_cache_triton(k, v, slots, starts, rows, counts)
    else:
        gather_cache_ragged_reference(k, v, slots, starts, rows, counts)


def _check(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    if k.dim() != 5 or k.shape != v.shape or k.stride() != v.stride() or k.dtype != v.dtype:
        raise KernelInputError(
            f"k is {k.dtype} {tuple(k.shape)}, v {v.dtype} {tuple(v.shape)};"
            " two caches [L, S, Hkv, C, D] alike in dtype and strides are needed"
        )
    if k.stride()[3:] != (k.shape[4], 1):
        raise KernelInputError(
            f"cache strides are {k.stride()}; a head's rows must be dense: ({k.shape[4]}, 1)"
        )
    if rows.dim() != 2 or not slots.shape == starts.shape == counts.shape == rows.shape[:1]:
        raise KernelInputError(
            f"rows have shape {tuple(rows.shape)}, slots {tuple(slots.shape)}, starts"
            f" {tuple(starts.shape)}, counts {tuple(counts.shape)}; [B, R] and three [B] are needed"
        )
    for index in (slots, starts, rows, counts):
        if index.dtype != torch.int32 or index.device != k.device or index.stride(-1) > 1:
            raise KernelInputError(
                f"an index is {index.dtype} on {index.device} with strides {index.stride()};"
                f" dense int32 on {k.device} is needed"
            )


__all__ = ["cost", "gather_cache", "gather_cache_ragged"]
