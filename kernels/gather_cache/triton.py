"""Triton form of the cache compaction: all layers and sequences, keys and values, in one launch.

One program takes ``BLOCK_D`` columns of one head in one layer of one sequence. It loads all source
rows, waits for its other threads, and stores: so overlap is safe, whatever the order of rows.
Programs share no row. Bytes: each kept row read and written once; its index and the sequence's
three numbers once a program.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.gather_cache.cost import padded_rows, tile_columns
from draftsmith.kernels.launching import TYPES, Variant, launch


@triton.jit
def gather_kernel(
    k_ptr, v_ptr,  # [L, S, H, C, D], rows dense
    rows_ptr,  # [B, R] int32: source rows, relative to the sequence's start
    slots_ptr, starts_ptr, counts_ptr,  # [B] int32
    stride_layer, stride_slot, stride_head,  # of both caches, int64
    num_heads, max_rows,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1)
    block = tl.program_id(2)
    layer = (tl.program_id(0) // num_heads).to(tl.int64)
    head = (tl.program_id(0) % num_heads).to(tl.int64)
    count = tl.load(counts_ptr + batch)
    slot = tl.load(slots_ptr + batch).to(tl.int64)
    start = tl.load(starts_ptr + batch).to(tl.int64)
    index = tl.arange(0, ROWS)
    column = block * BLOCK_D + tl.arange(0, BLOCK_D)
    kept = index < count
    sources = tl.load(rows_ptr + batch * max_rows + index, mask=kept, other=0)
    mask = kept[:, None] & (column < HEAD_DIM)[None, :]
    base = layer * stride_layer + slot * stride_slot + head * stride_head + start * HEAD_DIM
    source = base + sources[:, None] * HEAD_DIM + column[None, :]
    target = base + index[:, None] * HEAD_DIM + column[None, :]
    k = tl.load(k_ptr + source, mask=mask)
    v = tl.load(v_ptr + source, mask=mask)
    tl.debug_barrier()
    tl.store(k_ptr + target, k, mask=mask)
    tl.store(v_ptr + target, v, mask=mask)


def gather_cache_triton(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Arguments are those of ``gather_cache_ragged``, checked."""
    num_layers, _, num_heads, _, head_dim = k.shape
    num_sequences, max_rows = rows.shape
    block = tile_columns(max_rows, head_dim)
    launch(
        gather_kernel,
        (num_layers * num_heads, num_sequences, triton.cdiv(head_dim, block)),
        dict(
            **dict(k_ptr=k, v_ptr=v, rows_ptr=rows),
            **dict(slots_ptr=slots, starts_ptr=starts, counts_ptr=counts),
            **dict(stride_layer=k.stride(0), stride_slot=k.stride(1), stride_head=k.stride(2)),
            **dict(num_heads=num_heads, max_rows=max_rows),
            **dict(HEAD_DIM=head_dim, ROWS=padded_rows(max_rows), BLOCK_D=block),
        ),
        configuration("gather_cache", architecture_of(k.device)),
    )


def variants() -> Iterator[Variant]:
    """bf16 and fp32 caches of head size 128, paths of up to 8 and up to 64 rows."""
    for dtype in (torch.bfloat16, torch.float32):
        for rows in (8, 64):
            pointer = f"*{TYPES[dtype]}"
            yield Variant(
                kernel="gather_cache",
                label=f"{TYPES[dtype]} D=128 rows={rows}",
                function=gather_kernel,
                arguments=dict(
                    **dict(k_ptr=pointer, v_ptr=pointer, rows_ptr="*i32"),
                    **dict(slots_ptr="*i32", starts_ptr="*i32", counts_ptr="*i32"),
                    **dict(stride_layer="i64", stride_slot="i64", stride_head="i64"),
                    **dict(num_heads="i32", max_rows="i32"),
                ),
                constants=dict(HEAD_DIM=128, ROWS=rows, BLOCK_D=tile_columns(rows, 128)),
                divisible=frozenset({"stride_layer", "stride_slot", "stride_head"}),
            )
