"""Triton form of the product with a 12-bit or a plain bf16 weight, row-stable.

Grid (blocks of N, splits of K, sixteens of rows). Weights are decoded in registers, escapes put in
place, and multiplied as bf16 by tensor cores: of each ``BLOCK_K`` columns first the even ones, then
the odd, which lie in the same bytes of ``codes``. Rows of x always come in sixteens, the missing
ones zero, so the order of a row's sums is the same whatever goes with it. Splits of K have a fixed
size; the program that arrives last adds their sums in the order of K.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.bf12_gemv.window import WindowWeight
from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import Variant, interpreting, launch

_ESCAPE: tl.constexpr = tl.constexpr(15)
_GROUP: tl.constexpr = tl.constexpr(256)
_ROWS: tl.constexpr = tl.constexpr(16)


@triton.jit
def _restored(byte, code, base, values_ptr, start):
    """int32 bits of bf16 numbers from their low bytes and codes."""
    exponent = tl.where(code == 0, 0, code + base)
    bits = ((byte & 0x80) << 8) | (exponent << 7) | (byte & 0x7F)
    escaped = code == _ESCAPE
    true = tl.load(values_ptr + start + byte, mask=escaped, other=0).to(tl.int32)
    return tl.where(escaped, true, bits)


@triton.jit
def _accumulated(total, bits, x_ptr, row, column, depth, has_row, WIDEN: tl.constexpr):
    """total [N, 16] plus the product of bits [N, columns] with these columns of x."""
    mask = (column < depth)[:, None] & has_row[None, :]
    x = tl.load(x_ptr + row[None, :] * depth + column[:, None], mask=mask, other=0.0)
    if WIDEN:
        weight = (bits << 16).to(tl.float32, bitcast=True)
        return tl.dot(weight, x.to(tl.float32), total, input_precision="ieee")
    return tl.dot(bits.to(tl.int16).to(tl.bfloat16, bitcast=True), x, total)


@triton.jit
def bf12_kernel(
    out_ptr,  # [M, N] fp32
    partial_ptr,  # [splits, M, N] fp32; not used with one split
    tickets_ptr,  # [sixteens of rows, blocks of N] int32, zero before and after
    x_ptr,  # [M, K] bf16
    bias_ptr,  # [N] fp32, or x when there is none
    low_ptr,  # [N, pairs] int16: the low bytes of two columns, the even one below
    codes_ptr,  # [N, pairs] uint8
    starts_ptr,  # [N, groups] int32
    values_ptr,  # [escapes] int16
    plain_ptr,  # [N, K] int16: bits, when not PACKED
    base, num_rows, num_outputs, depth, pairs, groups, splits,
    PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDEN: tl.constexpr,  # multiply as fp32: the interpreter has no product of bf16
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    part = tl.program_id(1)
    sixteen = tl.program_id(2)
    output = block * BLOCK_N + tl.arange(0, BLOCK_N)
    has_output = output < num_outputs
    wide = output.to(tl.int64)[:, None]
    row = (sixteen * _ROWS + tl.arange(0, _ROWS)).to(tl.int64)
    has_row = row < num_rows
    total = tl.zeros((BLOCK_N, _ROWS), tl.float32)
    for begin in range(part * SPLIT, min(part * SPLIT + SPLIT, depth), BLOCK_K):
        pair = begin // 2 + tl.arange(0, BLOCK_K // 2)
        if PACKED:
            mask = has_output[:, None] & (pair < pairs)[None, :]
            at = wide * pairs + pair[None, :]
            low = tl.load(low_ptr + at, mask=mask, other=0).to(tl.int32)
            code = tl.load(codes_ptr + at, mask=mask, other=0).to(tl.int32)
            group = starts_ptr + wide * groups + begin // _GROUP
            start = tl.load(group, mask=has_output[:, None], other=0)
            even = _restored(low & 0xFF, code & 0xF, base, values_ptr, start)
            odd = _restored((low >> 8) & 0xFF, code >> 4, base, values_ptr, start)
        else:
            at = wide * depth + 2 * pair[None, :]
            mask = has_output[:, None] & (2 * pair < depth)[None, :]
            even = tl.load(plain_ptr + at, mask=mask, other=0).to(tl.int32)
            mask = has_output[:, None] & (2 * pair + 1 < depth)[None, :]
            odd = tl.load(plain_ptr + at + 1, mask=mask, other=0).to(tl.int32)
        total = _accumulated(total, even, x_ptr, row, 2 * pair, depth, has_row, WIDEN)
        total = _accumulated(total, odd, x_ptr, row, 2 * pair + 1, depth, has_row, WIDEN)
    at = row[None, :] * num_outputs + wide
    mask = has_output[:, None] & has_row[None, :]
    is_last = splits == 1
    if splits > 1:
        step = (tl.zeros((), tl.int64) + num_rows) * num_outputs
        tl.store(partial_ptr + part * step + at, total, mask=mask)
        tl.debug_barrier()  # every thread's sums are out before the ticket is drawn
        ticket = tickets_ptr + sixteen * tl.num_programs(0) + block
        is_last = tl.atomic_add(ticket, 1, sem="acq_rel") == splits - 1
        if is_last:
            tl.store(ticket, 0)  # for the next launch
            total = tl.zeros((BLOCK_N, _ROWS), tl.float32)
            there = partial_ptr + at
            for _ in range(0, splits):
                total += tl.load(there, mask=mask, other=0.0, cache_modifier=".cg")
                there += step
    if is_last:
        if HAS_BIAS:
            total += tl.load(bias_ptr + output, mask=has_output, other=0.0)[:, None]
        tl.store(out_ptr + at, total, mask=mask)


def product_triton(
    x: torch.Tensor,
    weight: WindowWeight | torch.Tensor,
    bias: torch.Tensor | None,
    tickets: torch.Tensor | None = None,
) -> torch.Tensor:
    """``[M, N]`` fp32; ``x`` dense bf16 ``[M, K]``, ``weight`` packed, or dense bf16."""
    num_rows, depth = x.shape
    num_outputs = weight.shape[0]
    shape = configuration("bf12_gemv", architecture_of(x.device))
    splits = triton.cdiv(depth, shape.blocks["SPLIT"])
    grid = (triton.cdiv(num_outputs, shape.blocks["BLOCK_N"]), splits, triton.cdiv(num_rows, 16))
    out = torch.empty(num_rows, num_outputs, dtype=torch.float32, device=x.device)
    partial = out
    if splits > 1:
        partial = torch.empty(splits, num_rows, num_outputs, device=x.device)
    if splits == 1:
        tickets = torch.empty(1, dtype=torch.int32, device=x.device)  # none is drawn
    elif tickets is None:
        tickets = torch.zeros(grid[0] * grid[2], dtype=torch.int32, device=x.device)
    if isinstance(weight, WindowWeight):
        low, base = weight.low.view(torch.int16), weight.base
        parts = dict(low_ptr=low, codes_ptr=weight.codes, plain_ptr=low)
        parts |= dict(starts_ptr=weight.starts, values_ptr=weight.values)
        pairs, groups = weight.codes.shape[1], weight.starts.shape[1]
    else:
        plain, base, pairs, groups = weight.view(torch.int16), 0, 0, 0
        names = ("low_ptr", "codes_ptr", "starts_ptr", "values_ptr", "plain_ptr")
        parts = dict.fromkeys(names, plain)
    launch(
        bf12_kernel,
        grid,
        dict(
            **dict(out_ptr=out, partial_ptr=partial, x_ptr=x, **parts),
            tickets_ptr=tickets,
            bias_ptr=x if bias is None else bias,
            **dict(base=base, num_rows=num_rows, num_outputs=num_outputs, depth=depth),
            **dict(pairs=pairs, groups=groups, splits=splits),
            **dict(PACKED=isinstance(weight, WindowWeight), HAS_BIAS=bias is not None),
            WIDEN=interpreting(),
        ),
        shape,
    )
    return out


def variants() -> Iterator[Variant]:
    """Packed and plain weights, K a multiple of 32."""
    for packed in (True, False):
        yield Variant(
            kernel="bf12_gemv",
            label="packed" if packed else "plain",
            function=bf12_kernel,
            arguments=dict(
                **dict(out_ptr="*fp32", partial_ptr="*fp32", tickets_ptr="*i32", x_ptr="*bf16"),
                **dict(bias_ptr="*bf16", low_ptr="*i16", codes_ptr="*u8", starts_ptr="*i32"),
                **dict(values_ptr="*i16", plain_ptr="*i16", base="i32", num_rows="i32"),
                **dict(num_outputs="i32", depth="i32", pairs="i32", groups="i32", splits="i32"),
            ),
            constants=dict(PACKED=packed, HAS_BIAS=False, WIDEN=False),
            divisible=frozenset({"num_outputs", "depth", "pairs"}),
        )
