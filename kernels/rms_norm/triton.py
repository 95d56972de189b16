"""Triton form of the root-mean-square norm: one program a row, the row in registers.

Formula, shapes, bytes and tolerance: see the package. A row of up to 16,384 numbers is held whole,
so it is read once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import TYPES, Variant, launch


@triton.jit
def rms_norm_kernel(
    x_ptr, residual_ptr,  # [N, H]; residual only if ADD
    weight_ptr,  # [H] fp32
    total_ptr, out_ptr,  # [N, H]; total only if ADD
    stride_x, stride_residual,
    eps,
    SIZE: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two, at least SIZE
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < SIZE
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        residual = tl.load(residual_ptr + row * stride_residual + column, mask=mask, other=0.0)
        total = (x + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * SIZE + column, total, mask=mask)
        x = total.to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0)
    out = x * factor * weight
    tl.store(out_ptr + row * SIZE + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum (x itself without a residual) and its norm."""
    num_rows, size = x.shape
    out = torch.empty(num_rows, size, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(out)
    other = x if residual is None else residual
    launch(
        rms_norm_kernel,
        (num_rows,),
        dict(
            **dict(x_ptr=x, residual_ptr=other, weight_ptr=weight, total_ptr=total, out_ptr=out),
            **dict(stride_x=x.stride(0), stride_residual=other.stride(0), eps=eps),
            **dict(SIZE=size, ADD=residual is not None, BLOCK=triton.next_power_of_2(size)),
        ),
        configuration("rms_norm", architecture_of(x.device)),
    )
    return total, out


def variants() -> Iterator[Variant]:
    """Hidden sizes 4,096 and 8,192 in bf16, 4,096 in fp32, with a residual or not."""
    for dtype, size, adds in (
        (torch.bfloat16, 4096, False),
        (torch.bfloat16, 4096, True),
        (torch.bfloat16, 8192, True),
        (torch.float32, 4096, True),
    ):
        pointer = f"*{TYPES[dtype]}"
        yield Variant(
            kernel="rms_norm",
            label=f"{TYPES[dtype]} H={size}{' add' if adds else ''}",
            function=rms_norm_kernel,
            arguments=dict(
                **dict(x_ptr=pointer, residual_ptr=pointer, weight_ptr="*fp32"),
                **dict(total_ptr=pointer, out_ptr=pointer),
                **dict(stride_x="i32", stride_residual="i32", eps="fp32"),
            ),
            constants=dict(SIZE=size, ADD=adds, BLOCK=size),
            divisible=frozenset({"stride_x", "stride_residual"}),
        )
