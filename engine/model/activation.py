"""The gated activation between the two products of a feed-forward block."""

from __future__ import annotations

import math

import torch

from draftsmith.engine.model.config import Activation


class GatedActivation:
    """``act(gate) * up`` of ``[N, 2 * I]`` -> ``[N, I]``, with silu or tanh-approximated gelu.

    Written out in torch operations whose every element comes out the same wherever it lies in the
    tensor. torch's own silu and gelu do not: elements at the end of a thread's share take another
    path, so a row's bits would depend on the number of rows and threads.
    """

    def __init__(self, kind: Activation, device: torch.device) -> None:
        self._silu = kind == "silu"
        # One-element tensors: torch adds and multiplies by those faster than by Python numbers.
        self._one = torch.ones(1, device=device)
        self._half = torch.full((1,), 0.5, device=device)
        self._cubic = torch.full((1,), 0.044715, device=device)
        self._slope = torch.full((1,), math.sqrt(2 / math.pi), device=device)

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        if self._silu:
            return gate.div(gate.neg().exp_().add_(self._one)).mul_(up)
        inner = gate.mul(gate).mul_(gate).mul_(self._cubic).add_(gate).mul_(self._slope)
        return inner.tanh_().add_(self._one).mul_(gate).mul_(self._half).mul_(up)
