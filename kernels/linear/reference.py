"""Plain torch form of the row-stable product."""

import torch
from torch.nn import functional


def linear_reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    cast = None if bias is None else bias.to(weight.dtype)
    return functional.linear(x.to(weight.dtype), weight, cast).to(x.dtype)
