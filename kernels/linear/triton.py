"""Triton form of the row-stable product.

Formula: out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n], sums in fp32, rounded to x's dtype.
x [M, K] and out [M, N] fp32, bf16 or fp16; weight [N, K] dense, of x's dtype, or of another when x
is fp32 (it is widened in registers); bias [N] of any of these, or None.

One program makes ``BLOCK_M`` x ``BLOCK_N`` numbers. It adds blocks of ``BLOCK_K`` products one
after the other, and the number of rows never changes a block's shape: a row's bits do not depend on
the rows beside it. There is no split of K, so programs, hence cards, are kept busy by a small
``BLOCK_N``: 4,096 outputs are 128 programs.

Bytes: N K of the weight for every BLOCK_M rows, M K of x for every BLOCK_N outputs (from the
second-level cache after the first), M N written (``cost``). Floor: N K element size over the
memory's bandwidth. Tolerance against the reference: 2^-20 sum_k |x weight| in fp32, and the
rounding of the result in bf16 and fp16.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import TYPES, Variant, interpreting, launch


@triton.jit
def linear_kernel(
    x_ptr,  # [M, K]
    weight_ptr,  # [N, K]
    bias_ptr,  # [N], or x when there is none
    out_ptr,  # [M, N]
    num_rows, num_outputs, depth,
    stride_x,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,  # BLOCK_K divides K
    WIDEN: tl.constexpr,  # products of fp32 numbers: for fp32 x, and in the interpreter
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    has_row = row < num_rows
    has_column = column < num_outputs
    offset = tl.arange(0, BLOCK_K)
    x_rows = x_ptr + row.to(tl.int64)[:, None] * stride_x
    weight_rows = weight_ptr + column.to(tl.int64)[None, :] * depth
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, depth, BLOCK_K):
        k = start + offset
        x_mask = has_row[:, None]
        weight_mask = has_column[None, :]
        if not EVEN_K:
            x_mask = x_mask & (k < depth)[None, :]
            weight_mask = weight_mask & (k < depth)[:, None]
        x = tl.load(x_rows + k[None, :], mask=x_mask, other=0.0)
        weight = tl.load(weight_rows + k[:, None], mask=weight_mask, other=0.0)
        if WIDEN:
            x = x.to(tl.float32)
            weight = weight.to(tl.float32)
        total += tl.dot(x, weight, input_precision="ieee")
    if HAS_BIAS:
        bias = tl.load(bias_ptr + column, mask=has_column, other=0.0)
        total += bias.to(tl.float32)[None, :]
    out = out_ptr + row.to(tl.int64)[:, None] * num_outputs + column[None, :]
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=has_row[:, None] & has_column[None, :])


def linear_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Arguments are those of ``linear``, checked; rows of x dense."""
    (num_rows, depth), num_outputs = x.shape, weight.shape[0]
    shape = configuration("linear", architecture_of(x.device))
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    launch(
        linear_kernel,
        (
            triton.cdiv(num_rows, shape.blocks["BLOCK_M"]),
            triton.cdiv(num_outputs, shape.blocks["BLOCK_N"]),
        ),
        dict(
            **dict(x_ptr=x, weight_ptr=weight, bias_ptr=x if bias is None else bias, out_ptr=out),
            **dict(num_rows=num_rows, num_outputs=num_outputs, depth=depth),
            **dict(stride_x=x.stride(0), HAS_BIAS=bias is not None),
            EVEN_K=depth % shape.blocks["BLOCK_K"] == 0,
            WIDEN=x.dtype == torch.float32 or interpreting(),
        ),
        shape,
    )
    return out


def variants() -> Iterator[Variant]:
    """bf16 and fp32 with K a multiple of 16, with and without a bias and an edge in K."""
    for dtype, has_bias, even in (
        (torch.bfloat16, False, True),
        (torch.bfloat16, True, False),
        (torch.float32, False, True),
    ):
        pointer = f"*{TYPES[dtype]}"
        yield Variant(
            kernel="linear",
            label=f"{TYPES[dtype]}{' bias' if has_bias else ''}{'' if even else ' odd K'}",
            function=linear_kernel,
            arguments=dict(
                **dict(x_ptr=pointer, weight_ptr=pointer, out_ptr=pointer),
                bias_ptr="*fp32" if has_bias else pointer,
                **dict(num_rows="i32", num_outputs="i32", depth="i32", stride_x="i32"),
            ),
            constants=dict(HAS_BIAS=has_bias, EVEN_K=even, WIDEN=dtype == torch.float32),
            divisible=frozenset({"depth", "num_outputs", "stride_x"}),
        )
