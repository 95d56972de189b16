"""Product of a few rows with a 12-bit weight on a device, row-stable.

Formula: out[m, n] = sum_k bf16(x[m, k]) * weight[n, k] + bias[n], sums in fp32.
x [M, K] of any float type, rounded to bf16; weight ``WindowWeight`` [N, K], or dense bf16; bias [N]
or None; out [M, N] in x's type. Made for 1 to 16 rows; more are taken sixteen at a time.

A packed weight gives the bits of the same product with the bf16 tensor, and a row's bits do not
depend on the rows beside it: both run one kernel, numbers are restored before they are multiplied,
and the order of sums over K is fixed by the block shapes alone.

Bytes: 1.5 N Kp + 4 N ceil(K / BLOCK_K) + 2 escapes a sixteen of rows, 2 M K of x for each block of
outputs (from the second-level cache after the first), 4 M N out; with S > 1 splits of K another 8 S
M N (``cost``). Floor: the weight's bytes over the memory's bandwidth, 0.76 of bf16's. Tolerance
against the reference: 2^-18 sum_k |x weight|.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from draftsmith.kernels.backend import form_for
from draftsmith.kernels.bf12_gemv.window import WindowWeight
from draftsmith.kernels.cost import NOTHING, Cost
from draftsmith.kernels.errors import KernelInputError


def product(
    x: torch.Tensor,
    weight: WindowWeight | torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    tickets: torch.Tensor | None = None,
) -> torch.Tensor:
    """See the module's docstring. ``tickets``: int32 zeros, one for each block of outputs and
    sixteen rows, which the launch leaves zero; given, nothing is cleared before it.
    """
    _check(x, weight, bias)
    rows = x.to(torch.bfloat16).contiguous()
    if form_for("bf12_gemv", x) == "triton":
        from draftsmith.kernels.bf12_gemv.triton import product_triton

        wide = None if bias is None else bias.float().contiguous()
        return product_triton(rows, weight, wide, tickets).to(x.dtype)
    whole = weight.unpack() if isinstance(weight, WindowWeight) else weight
    out = functional.linear(rows.float(), whole.float())
    return (out if bias is None else out + bias.float()).to(x.dtype)


def cost(
    *,
    num_rows: int,
    num_outputs: int,
    depth: int,
    num_escapes: int,
    block_n: int,
    block_k: int,
    split: int,
) -> Cost:
    """Of one product of bf16 rows with a packed weight, without a bias."""
    if not num_rows or not num_outputs:
        return NOTHING
    sixteens, splits = -(-num_rows // 16), -(-depth // split)
    blocks = -(-num_outputs // block_n)
    width = -(-depth // 32) * 32
    weight = num_outputs * (width * 3 // 2 + 4 * -(-depth // block_k)) + 2 * num_escapes
    out = 4 * num_rows * num_outputs
    partial = out * splits if splits > 1 else 0
    tickets = 4 * blocks * sixteens if splits > 1 else 0
    return Cost(
        bytes_read=weight * sixteens + 2 * num_rows * depth * blocks + partial,
        bytes_written=out + partial + tickets,
        launches=1,
    )


def _check(x: torch.Tensor, weight: WindowWeight | torch.Tensor, bias: torch.Tensor | None) -> None:
    if x.dim() != 2 or not x.is_floating_point() or x.shape[1] != weight.shape[1]:
        raise KernelInputError(
            f"x is {x.dtype} {tuple(x.shape)}; floating-point [M, {weight.shape[1]}] is needed"
        )
    if isinstance(weight, torch.Tensor) and (
        weight.dtype != torch.bfloat16 or not weight.is_contiguous()
    ):
        raise KernelInputError(
            f"weight is {weight.dtype} with strides {weight.stride()}; dense bf16 is needed"
        )
    if bias is not None and bias.shape != (weight.shape[0],):
        raise KernelInputError(
            f"bias has shape {tuple(bias.shape)}; weight needs ({weight.shape[0]},)"
        )
    if x.device != weight.device:
        raise KernelInputError(f"x is on {x.device}, weight on {weight.device}; use one device")


__all__ = ["cost", "product"]
