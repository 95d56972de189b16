"""Triton form of attention over committed rows and draft ancestors: one launch and a reduce.

Formula, shapes and tolerance: see the package. q in any of the cache's types, or fp32 over any
cache; in bf16 and fp16 the weights of the values are rounded to that type before the second
product, as usual on tensor cores: 2^-7 of the largest value.

Keys stand in logical order: the prefix, then a row's ancestors by depth. That line is cut into
splits of ``SPLIT`` positions, each walked in blocks of ``BLOCK_N``; a second kernel merges a row's
splits, the first to the last. Nothing of that depends on the batch, on the width, on how many
splits others have, or on the cache row of an ancestor; blocks in which a row sees nothing leave its
bits alone; and the compiler may not fuse a product with a sum, which it might do in one place and
not in another. So a row has the bits it has when it is decoded alone.

Programs by (work, kv head, sequence). A tile is 16 pairs of a query row and one of its group of
heads: they share each key that they read. Splits that lie whole in the prefix are shared work, one
program a tile and split. What is left, the end of the prefix and the ancestors, differs from row to
row in its cache rows: one program a row. Chains (no ``paths``) see keys in cache order, so all of
their work is shared. A key of NaN or infinity that a row of such a tile does not see by mask alone
(a later row's, or one behind the window) makes that row NaN.

Bytes (``cost``): 2 D element size (k, v) for each key of a tile, and 4 (D + 2) written and read
again for each row, head and split. Floor: the first with one tile, over the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import TYPES, Variant, interpreting, launch
from draftsmith.kernels.ragged import RaggedRows
from draftsmith.kernels.tree_attention.plan import plan, tile_pairs, tile_rows

_OPTIONS = {"enable_fp_fusion": False}
_REDUCE_OPTIONS = {"num_warps": 1}  # a head's numbers: four a thread
_COMMON_TYPES = {
    **dict.fromkeys(("mixed_ptr", "largest_ptr", "weight_ptr"), "*fp32"),
    **dict.fromkeys(("path_counts_ptr", "lengths_ptr", "widths_ptr"), "*i32"),
    **dict.fromkeys(("width", "first_row", "num_rows", "offset", "num_splits", "window"), "i32"),
}


@triton.jit
def _scores(q, k, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """``[M, N]``, in units of log 2."""
    scores = tl.dot(q, k, input_precision="ieee") * scale
    if HAS_SOFTCAP:
        scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
    return scores * 1.4426950408889634


@triton.jit
def _attend_split(
    q,  # [M, D]
    k_ptr, v_ptr,  # of the sequence's slot and head: [C, D]
    path_ptr,  # ancestors of the row, only if GATHER
    split, start, stop,  # the split, and the part of it in which a row of the tile sees something
    first, total,  # [M]: each row sees logical positions first .. total - 1
    length,
    scale, softcap,
    HEAD_DIM: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    GATHER: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums of one split: maximum ``[M]``, weight ``[M]``, weighted values ``[M, D]``."""
    d = tl.arange(0, BLOCK_D)
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for block in range(split + (start - split) // BLOCK_N * BLOCK_N, stop, BLOCK_N):
        position = block + tl.arange(0, BLOCK_N)
        exists = position < stop
        cache_row = position
        if GATHER:
            draft = position - length
            ancestor = tl.load(path_ptr + draft, mask=exists & (draft >= 0), other=0)
            cache_row = tl.where(draft >= 0, length + ancestor, position)
        k_mask = exists[None, :] & (d < HEAD_DIM)[:, None]
        k = tl.load(k_ptr + cache_row[None, :] * HEAD_DIM + d[:, None], mask=k_mask, other=0.0)
        v_mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        v = tl.load(v_ptr + cache_row[:, None] * HEAD_DIM + d[None, :], mask=v_mask, other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        scores = _scores(q, k, scale, softcap, HAS_SOFTCAP)
        seen = (position[None, :] >= first[:, None]) & (position[None, :] < total[:, None])
        seen = seen & exists[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        now_largest = tl.maximum(largest, tl.max(scores, axis=1))
        base = tl.where(now_largest == float("-inf"), 0.0, now_largest)
        shrink = tl.exp2(largest - base)
        parts = tl.exp2(scores - base[:, None])
        weight = weight * shrink + tl.sum(parts, axis=1)
        mixed = mixed * shrink[:, None]
        mixed = mixed + tl.dot(parts.to(v.dtype), v, input_precision="ieee")
        largest = now_largest
    return largest, weight, mixed


@triton.jit
def attention_kernel(
    q_ptr,  # [B, W, Hq, D]
    k_ptr, v_ptr,  # [S, Hkv, C, D]
    path_rows_ptr, path_counts_ptr,  # [B, W, P], [B, W] int32, only if TREE
    slots_ptr, lengths_ptr, widths_ptr,  # [B] int32
    mixed_ptr,  # [B, R, Hq, splits, D] fp32: rows first_row .. first_row + R - 1
    largest_ptr, weight_ptr,  # [B, R, Hq, splits] fp32
    width, first_row, num_rows, offset, path_size,
    num_shared, num_splits,
    stride_slot, stride_head,  # of the caches, int64
    scale, softcap, window,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads a kv head
    HEAD_DIM: tl.constexpr,
    TREE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    work = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2)
    real = tl.load(widths_ptr + sequence)
    length = tl.load(lengths_ptr + sequence)
    pair = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    # The first programs take one row each; then come tiles of rows, split by split.
    num_alone = num_rows if TREE else 0
    alone = work < num_alone
    shared_work = work - num_alone
    tile = tl.where(alone, work, shared_work // tl.maximum(num_shared, 1))
    rows_in_tile = tl.where(alone, 1, BLOCK_M // GROUP)
    local = tile * rows_in_tile + pair // GROUP
    row = first_row + local
    has_row = (pair < rows_in_tile * GROUP) & (local < num_rows) & (row < real)
    if tl.max(has_row.to(tl.int32), axis=0) == 0:
        return
    if TREE:
        count = tl.load(path_counts_ptr + sequence * width + row, mask=has_row, other=0)
        total = tl.where(has_row, length + count, 0)
    else:
        total = tl.where(has_row, length + offset + row + 1, 0)
    first = tl.zeros((BLOCK_M,), tl.int32)
    if HAS_WINDOW:
        first = tl.maximum(total - window, 0)
    begin = tl.min(tl.where(has_row, first, 2147483647), axis=0)
    end = tl.max(total, axis=0)
    # A row alone takes all splits from the first that does not lie whole in the prefix.
    own = tl.maximum(length // SPLIT, begin // SPLIT)
    split = tl.where(alone, own, shared_work % tl.maximum(num_shared, 1)) * SPLIT
    last = tl.where(alone, end, tl.minimum(end, split + SPLIT))
    if TREE:
        last = tl.where(alone | (split + SPLIT <= length), last, split)
    if (split >= last) | (begin >= last):
        return
    head = kv_head * GROUP + pair % GROUP
    q_row = (sequence * width + row) * (NUM_KV_HEADS * GROUP) + head
    q_mask = has_row[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(q_ptr + q_row[:, None] * HEAD_DIM + d[None, :], mask=q_mask, other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    slot = tl.load(slots_ptr + sequence).to(tl.int64)
    base = slot * stride_slot + kv_head.to(tl.int64) * stride_head
    part = ((sequence * num_rows + local) * (NUM_KV_HEADS * GROUP) + head) * num_splits
    if TREE:
        if alone:
            path = path_rows_ptr + (sequence * width + first_row + tile) * path_size
            while split < last:
                largest, weight, mixed = _attend_split(
                    q, k_ptr + base, v_ptr + base, path,
                    split, tl.maximum(split, begin), tl.minimum(last, split + SPLIT),
                    first, total, length, scale, softcap,
                    HEAD_DIM, HAS_SOFTCAP, True, WIDEN, BLOCK_M, BLOCK_D, BLOCK_N,
                )  # fmt: skip
                place = part + split // SPLIT
                tl.store(largest_ptr + place, largest, mask=has_row)
                tl.store(weight_ptr + place, weight, mask=has_row)
                tl.store(mixed_ptr + place[:, None] * HEAD_DIM + d[None, :], mixed, mask=q_mask)
                split += SPLIT
            return
    largest, weight, mixed = _attend_split(
        q, k_ptr + base, v_ptr + base, path_rows_ptr,
        split, tl.maximum(split, begin), last,
        first, total, length, scale, softcap,
        HEAD_DIM, HAS_SOFTCAP, False, WIDEN, BLOCK_M, BLOCK_D, BLOCK_N,
    )  # fmt: skip
    place = part + split // SPLIT
    tl.store(largest_ptr + place, largest, mask=has_row)
    tl.store(weight_ptr + place, weight, mask=has_row)
    tl.store(mixed_ptr + place[:, None] * HEAD_DIM + d[None, :], mixed, mask=q_mask)


@triton.jit
def reduce_kernel(
    mixed_ptr, largest_ptr, weight_ptr,  # as above
    path_counts_ptr, lengths_ptr, widths_ptr,
    out_ptr,  # [B, W, Hq, D]
    width, first_row, num_rows, offset, num_splits, window,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TREE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    local = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    row = first_row + local
    d = tl.arange(0, BLOCK_D)
    mask = d < HEAD_DIM
    out = out_ptr + ((sequence * width + row) * NUM_HEADS + head) * HEAD_DIM + d
    if row >= tl.load(widths_ptr + sequence):
        tl.store(out, tl.zeros((BLOCK_D,), tl.float32).to(out_ptr.dtype.element_ty), mask=mask)
        return
    total = tl.load(lengths_ptr + sequence)
    if TREE:
        total += tl.load(path_counts_ptr + sequence * width + row)
    else:
        total += offset + row + 1
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(total - window, 0)
    part = ((sequence * num_rows + local) * NUM_HEADS + head) * num_splits
    largest = float("-inf")
    weight = 0.0
    mixed = tl.zeros((BLOCK_D,), tl.float32)
    for split in range(begin // SPLIT, (total + SPLIT - 1) // SPLIT):
        next_largest = tl.load(largest_ptr + part + split)
        next_weight = tl.load(weight_ptr + part + split)
        next_mixed = tl.load(mixed_ptr + (part + split) * HEAD_DIM + d, mask=mask, other=0.0)
        now_largest = tl.maximum(largest, next_largest)
        base = tl.where(now_largest == float("-inf"), 0.0, now_largest)
        shrink = tl.exp2(largest - base)
        next_shrink = tl.exp2(next_largest - base)
        weight = weight * shrink + next_weight * next_shrink
        mixed = mixed * shrink + next_mixed * next_shrink
        largest = now_largest
    mixed = tl.where(weight == 0.0, 0.0, mixed / tl.where(weight == 0.0, 1.0, weight))
    tl.store(out, mixed.to(out_ptr.dtype.element_ty), mask=mask)


def tree_attention_triton(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: RaggedRows,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Arguments are those of ``ragged_attention``, checked; q dense."""
    num_sequences, width, num_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    shape = configuration("tree_attention", architecture_of(q.device))
    layout = plan(
        num_sequences=num_sequences,
        width=width,
        num_heads=num_heads,
        head_dim=head_dim,
        offset=rows.offset,
        max_length=rows.max_length,
        is_tree=rows.paths is not None,
        split=shape.blocks["SPLIT"],
    )
    out = torch.empty_like(q)
    size = (num_sequences, layout.chunk, num_heads, layout.num_splits)
    mixed = torch.empty(*size, head_dim, dtype=torch.float32, device=q.device)
    largest, weight = torch.empty(2, *size, dtype=torch.float32, device=q.device)
    path_rows = rows.slots if rows.paths is None else rows.paths.rows
    path_counts = rows.slots if rows.paths is None else rows.paths.counts
    group = num_heads // num_kv_heads
    common = dict(
        **dict(mixed_ptr=mixed, largest_ptr=largest, weight_ptr=weight),
        **dict(path_counts_ptr=path_counts, lengths_ptr=rows.lengths, widths_ptr=rows.widths),
        **dict(width=width, offset=rows.offset, num_splits=layout.num_splits),
        **dict(window=window or 0, HAS_WINDOW=window is not None),
        **dict(HEAD_DIM=head_dim, BLOCK_D=max(16, triton.next_power_of_2(head_dim))),
        TREE=rows.paths is not None,
    )
    for first_row in range(0, width, layout.chunk):
        num_rows = min(layout.chunk, width - first_row)
        tiles = triton.cdiv(num_rows, tile_rows(group)) * layout.num_shared
        work = tiles + (num_rows if rows.paths is not None else 0)
        chunk = dict(first_row=first_row, num_rows=num_rows)
        launch(
            attention_kernel,
            (work, num_kv_heads, num_sequences),
            dict(
                **dict(q_ptr=q, k_ptr=k_cache, v_ptr=v_cache, path_rows_ptr=path_rows),
                **dict(slots_ptr=rows.slots, path_size=rows.offset + width),
                **dict(num_shared=layout.num_shared, scale=scale, softcap=softcap or 0.0),
                **dict(stride_slot=k_cache.stride(0), stride_head=k_cache.stride(1)),
                **dict(NUM_KV_HEADS=num_kv_heads, GROUP=group, HAS_SOFTCAP=softcap is not None),
                WIDEN=q.dtype == torch.float32 or interpreting(),
                BLOCK_M=tile_pairs(group),
                **common,
                **chunk,
            ),
            shape,
            **_OPTIONS,
        )
        launch(
            reduce_kernel,
            (num_rows, num_heads, num_sequences),
            dict(out_ptr=out, NUM_HEADS=num_heads, **common, **chunk),
            shape,
            **_OPTIONS,
            **_REDUCE_OPTIONS,
        )
    return out


def variants() -> Iterator[Variant]:
    """Head size 128 with groups of 4 (Qwen3-8B) and 8, trees and chains, window and soft cap."""
    for dtype, group, tree, window, softcap in (
        (torch.bfloat16, 4, True, False, False),
        (torch.bfloat16, 4, False, False, False),
        (torch.bfloat16, 8, True, True, True),
        (torch.float32, 4, True, False, False),
    ):
        pointer = f"*{TYPES[dtype]}"
        flags = dict(TREE=tree, HAS_WINDOW=window)
        label = f"{TYPES[dtype]} group={group} {'tree' if tree else 'chain'}"
        yield Variant(
            kernel="tree_attention",
            label=f"{label}{' window' if window else ''}{' cap' if softcap else ''}",
            function=attention_kernel,
            arguments=dict(
                **dict(q_ptr=pointer, k_ptr=pointer, v_ptr=pointer, slots_ptr="*i32"),
                **dict(path_rows_ptr="*i32", num_shared="i32", path_size="i32"),
                **dict(stride_slot="i64", stride_head="i64", scale="fp32", softcap="fp32"),
                **_COMMON_TYPES,
            ),
            constants=dict(
                **dict(NUM_KV_HEADS=8, GROUP=group, HEAD_DIM=128, BLOCK_D=128),
                **dict(BLOCK_M=tile_pairs(group), HAS_SOFTCAP=softcap, **flags),
                WIDEN=dtype == torch.float32,
            ),
            divisible=frozenset({"stride_slot", "stride_head"}),
            options=_OPTIONS,
        )
        yield Variant(
            kernel="tree_attention",
            label=f"reduce {TYPES[dtype]} {group * 8} heads{' tree' if tree else ''}"
            f"{' window' if window else ''}",
            function=reduce_kernel,
            arguments=dict(out_ptr=pointer, **_COMMON_TYPES),
            constants=dict(NUM_HEADS=8 * group, HEAD_DIM=128, BLOCK_D=128, **flags),
            options={**_OPTIONS, **_REDUCE_OPTIONS},
        )
