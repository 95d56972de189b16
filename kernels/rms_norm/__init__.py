"""Root-mean-square norm of rows, and the same behind a residual sum.

Formula: out[n, h] = x[n, h] * rsqrt(mean_h x[n, h]^2 + eps) * weight[h]; ``add_rms_norm`` first
makes total = x + residual, rounded to x's dtype, gives it too, and takes the norm of it. Sums in
fp32. x, residual, out [N, H] fp32, bf16 or fp16, rows dense; weight [H] fp32.

Bytes: each input once, each output once (``cost``); floor: those over the memory's bandwidth.
Tolerance: 4 units in the last place of fp32, and the rounding to x's dtype. Rows are stable: one
program reduces one row in an order that depends on H alone.

Why not torch on a GPU: five launches and as many passes instead of one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from draftsmith.kernels.backend import form_for
from draftsmith.kernels.cost import NOTHING, Cost
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.rms_norm.reference import rms_norm_reference

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Normed(NamedTuple):
    total: torch.Tensor  # x + residual
    normed: torch.Tensor


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See the module's docstring. KernelInputError for shapes or types that do not fit."""
    _check(x, weight, None)
    if form_for("rms_norm", x) == "triton":
        from draftsmith.kernels.rms_norm.triton import rms_norm_triton

        return rms_norm_triton(x, None, weight, eps)[1]
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> Normed:
    """See the module's docstring."""
    _check(x, weight, residual)
    if form_for("rms_norm", x) == "triton":
        from draftsmith.kernels.rms_norm.triton import rms_norm_triton

        return Normed(*rms_norm_triton(x, residual, weight, eps))
    total = x + residual
    return Normed(total, rms_norm_reference(total, weight, eps))


def cost(*, num_rows: int, size: int, element_size: int, adds: bool = False) -> Cost:
    """Of one call of ``rms_norm``, or of ``add_rms_norm`` if it ``adds``."""
    if not num_rows:
        return NOTHING
    moved = num_rows * size * element_size * (2 if adds else 1)
    return Cost(bytes_read=moved + num_rows * size * 4, bytes_written=moved, launches=1)


def _check(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    if x.dim() != 2 or x.dtype not in FLOATS or x.stride(1) != 1:
        raise KernelInputError(
            f"x is {x.dtype} {tuple(x.shape)} with strides {x.stride()};"
            " fp32, bf16 or fp16 [N, H] with dense rows is needed"
        )
    if weight.dtype != torch.float32 or weight.shape != x.shape[1:]:
        raise KernelInputError(
            f"weight is {weight.dtype} {tuple(weight.shape)}; fp32 ({x.shape[1]},) is needed"
        )
    if residual is not None and (
        residual.shape != x.shape or residual.dtype != x.dtype or residual.stride(1) != 1
    ):
        raise KernelInputError(
            f"residual is {residual.dtype} {tuple(residual.shape)} with strides"
            f" {residual.stride()}; x's shape, dtype and dense rows are needed"
        )


__all__ = ["Normed", "add_rms_norm", "cost", "rms_norm"]
