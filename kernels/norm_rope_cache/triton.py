"""Triton form of the pass between product and attention: one program a head of a row.

Formula, shapes, bytes and tolerance: see the package. A head is small (128 numbers), so a program
is one warp; q heads write to q, k and v heads into the cache, and padding rows end at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import TYPES, Variant, launch
from draftsmith.kernels.norm_rope_cache.records import HeadNorm, Rotation
from draftsmith.kernels.ragged import RaggedRows


@triton.jit
def norm_rope_cache_kernel(
    qkv_ptr,  # [B W, Hq + 2 Hkv, D]
    norm_ptr,  # [Hq + Hkv, D] fp32, only if NORM
    cosine_ptr, sine_ptr,  # [P, ROTARY] fp32, only if ROTARY
    positions_ptr,  # [B W] int64, only if ROTARY
    q_ptr,  # [B W, Hq, D]
    k_ptr, v_ptr,  # [S, Hkv, C, D]
    slots_ptr, lengths_ptr, widths_ptr,  # [B] int32
    width, offset,
    stride_slot, stride_head,  # of the caches, int64
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    sequence = row // width
    place = row % width
    if place >= tl.load(widths_ptr + sequence):
        return
    d = tl.arange(0, BLOCK_D)
    mask = d < HEAD_DIM
    source = qkv_ptr + (row * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM
    x = tl.load(source + d, mask=mask, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KV_HEADS:
        if NORM:
            factor = tl.rsqrt(tl.sum(x * x, axis=0) / HEAD_DIM + eps)
            x = x * factor * tl.load(norm_ptr + head * HEAD_DIM + d, mask=mask, other=0.0)
        if ROTARY:
            turned = d < ROTARY
            partner = tl.where(d < ROTARY // 2, d + ROTARY // 2, d - ROTARY // 2)
            other = tl.load(source + partner, mask=turned, other=0.0).to(tl.float32)
            if NORM:
                weight = tl.load(norm_ptr + head * HEAD_DIM + partner, mask=turned, other=0.0)
                other = other * factor * weight
            position = tl.load(positions_ptr + row)
            cosine = tl.load(cosine_ptr + position * ROTARY + d, mask=turned, other=1.0)
            sine = tl.load(sine_ptr + position * ROTARY + d, mask=turned, other=0.0)
            x = x * cosine + other * sine
    if head < NUM_HEADS:
        q_row = q_ptr + (row * NUM_HEADS + head) * HEAD_DIM
        tl.store(q_row + d, x.to(q_ptr.dtype.element_ty), mask=mask)
    else:
        kv_head = ((head - NUM_HEADS) % NUM_KV_HEADS).to(tl.int64)
        slot = tl.load(slots_ptr + sequence).to(tl.int64)
        cache_row = tl.load(lengths_ptr + sequence).to(tl.int64) + offset + place
        target = slot * stride_slot + kv_head * stride_head + cache_row * HEAD_DIM + d
        if head < NUM_HEADS + NUM_KV_HEADS:
            tl.store(k_ptr + target, x.to(k_ptr.dtype.element_ty), mask=mask)
        else:
            tl.store(v_ptr + target, x.to(v_ptr.dtype.element_ty), mask=mask)


def norm_rope_cache_triton(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: RaggedRows,
    *,
    norm: HeadNorm | None,
    rotation: Rotation | None,
) -> torch.Tensor:
    """Arguments are those of the reference, checked. A pointer that is not read is qkv's."""
    num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    num_rows, num_heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * num_kv_heads
    num_sequences = rows.slots.shape[0]
    width = num_rows // num_sequences if num_sequences else 0
    q = torch.empty(num_rows, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    launch(
        norm_rope_cache_kernel,
        (num_rows, num_heads + 2 * num_kv_heads),
        dict(
            **dict(qkv_ptr=qkv, q_ptr=q, k_ptr=k_cache, v_ptr=v_cache),
            norm_ptr=qkv if norm is None else norm.weight,
            cosine_ptr=qkv if rotation is None else rotation.cosine,
            sine_ptr=qkv if rotation is None else rotation.sine,
            positions_ptr=qkv if rotation is None else rotation.positions,
            **dict(slots_ptr=rows.slots, lengths_ptr=rows.lengths, widths_ptr=rows.widths),
            **dict(width=width, offset=rows.offset, eps=0.0 if norm is None else norm.eps),
            **dict(stride_slot=k_cache.stride(0), stride_head=k_cache.stride(1)),
            **dict(NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim),
            ROTARY=0 if rotation is None else rotation.cosine.shape[1],
            **dict(NORM=norm is not None, BLOCK_D=triton.next_power_of_2(head_dim)),
        ),
        configuration("norm_rope_cache", architecture_of(qkv.device)),
    )
    return q.view(num_sequences, width, num_heads, head_dim)


def variants() -> Iterator[Variant]:
    """Head size 128, 32 and 8 heads: with norms (Qwen3), without (Llama), without rotation."""
    for dtype, normed, rotary in (
        (torch.bfloat16, True, 128),
        (torch.bfloat16, False, 128),
        (torch.bfloat16, False, 0),
        (torch.float32, True, 64),
    ):
        pointer = f"*{TYPES[dtype]}"
        yield Variant(
            kernel="norm_rope_cache",
            label=f"{TYPES[dtype]}{' norm' if normed else ''} R={rotary}",
            function=norm_rope_cache_kernel,
            arguments=dict(
                **dict(qkv_ptr=pointer, q_ptr=pointer, k_ptr=pointer, v_ptr=pointer),
                norm_ptr="*fp32" if normed else pointer,
                **dict.fromkeys(("cosine_ptr", "sine_ptr"), "*fp32" if rotary else pointer),
                positions_ptr="*i64" if rotary else pointer,
                **dict(slots_ptr="*i32", lengths_ptr="*i32", widths_ptr="*i32"),
                **dict(width="i32", offset="i32", stride_slot="i64", stride_head="i64"),
                eps="fp32",
            ),
            constants=dict(
                **dict(NUM_HEADS=32, NUM_KV_HEADS=8, HEAD_DIM=128, BLOCK_D=128),
                **dict(ROTARY=rotary, NORM=normed),
            ),
            divisible=frozenset({"stride_slot", "stride_head"}),
        )
