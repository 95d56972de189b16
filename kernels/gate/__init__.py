"""The gated activation between the two products of a feed-forward block.

Formula: out[n, i] = act(x[n, i]) * x[n, I + i], act silu or gelu in its tanh approximation; in
fp32, rounded once. x [N, 2 I] fp32, bf16 or fp16, rows dense; out [N, I].

Bytes: 2 N I read and N I written (``cost``); floor: those over the memory's bandwidth. Tolerance:
2^-20 of the result in fp32, and the rounding to x's dtype. Every number is made on its own: rows
are stable.

Why not torch on a GPU: one launch and one pass instead of up to nine.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from draftsmith.kernels.backend import form_for
from draftsmith.kernels.cost import NOTHING, Cost
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.gate.reference import gate_reference

Activation = Literal["silu", "gelu_pytorch_tanh"]


def gate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """See the module's docstring. KernelInputError for shapes or types that do not fit."""
    if activation not in get_args(Activation):
        raise KernelInputError(
            f"activation {activation!r} is not one of {', '.join(get_args(Activation))}"
        )
    if x.dim() != 2 or x.shape[1] % 2 or x.stride(1) != 1 or not x.is_floating_point():
        raise KernelInputError(
            f"x is {x.dtype} {tuple(x.shape)} with strides {x.stride()};"
            " floats [N, 2 I] with dense rows are needed"
        )
    if form_for("gate", x) == "triton":
        from draftsmith.kernels.gate.triton import gate_triton

        return gate_triton(x, activation)
    return gate_reference(x, activation)


def cost(*, num_rows: int, size: int, element_size: int) -> Cost:
    """Of one call that gives ``size`` numbers a row."""
    numbers = num_rows * size * element_size
    if not numbers:
        return NOTHING
    return Cost(bytes_read=2 * numbers, bytes_written=numbers, launches=1)


__all__ = ["Activation", "cost", "gate"]
