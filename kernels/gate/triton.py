"""Triton form of the gated activation, ``BLOCK`` numbers of a row a program.

Formula, shapes, bytes and tolerance: see the package. Both activations are g * sigmoid(z): z is g
for silu, and 2 sqrt(2 / pi) (g + 0.044715 g^3) for the tanh form of gelu, since
1 + tanh(y) = 2 sigmoid(2 y).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import TYPES, Variant, launch

_SLOPE = tl.constexpr(2 * math.sqrt(2 / math.pi))


@triton.jit
def gate_kernel(
    x_ptr,  # [N, 2 I]
    out_ptr,  # [N, I]
    size, stride_x,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    gate = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + size + column, mask=mask, other=0.0).to(tl.float32)
    z = gate
    if GELU:
        z = _SLOPE * (gate + 0.044715 * gate * gate * gate)
    out = gate / (1.0 + tl.exp(-z)) * up
    tl.store(out_ptr + row * size + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def gate_triton(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Arguments are those of ``gate``, checked."""
    num_rows, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(num_rows, size, dtype=x.dtype, device=x.device)
    shape = configuration("gate", architecture_of(x.device))
    launch(
        gate_kernel,
        (num_rows, triton.cdiv(size, shape.blocks["BLOCK"])),
        dict(
            **dict(x_ptr=x, out_ptr=out, size=size, stride_x=x.stride(0)),
            GELU=activation != "silu",
        ),
        shape,
    )
    return out


def variants() -> Iterator[Variant]:
    """Both activations in bf16, silu in fp32."""
    for dtype, gelu in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)):
        pointer = f"*{TYPES[dtype]}"
        yield Variant(
            kernel="gate",
            label=f"{TYPES[dtype]} {'gelu' if gelu else 'silu'}",
            function=gate_kernel,
            arguments=dict(x_ptr=pointer, out_ptr=pointer, size="i32", stride_x="i32"),
            constants=dict(GELU=gelu),
            divisible=frozenset({"size", "stride_x"}),
        )
