"""Plain torch form of the gated activation."""

import torch
from torch.nn import functional


def gate_reference(x: torch.Tensor, activation: str) -> torch.Tensor:
    gate, up = x.float().chunk(2, dim=-1)
    if activation == "silu":
        return (functional.silu(gate) * up).to(x.dtype)
    return (functional.gelu(gate, approximate="tanh") * up).to(x.dtype)
