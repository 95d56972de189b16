"""Root-mean-square norm in a fixed order of operations per row."""

from __future__ import annotations

import torch


class RmsNorm:
    """``x * weight / sqrt(mean(x^2) + eps)`` over the last dimension, computed in fp32, returned in
    x's dtype.

    Written as ``x / sqrt(|x|^2 + n * eps) * (weight * sqrt(n))``: on the CPU torch's vector norm is
    one fused pass, where its rms_norm falls apart into several. Apart from that reduction, whose
    order depends only on the row's length, every step is one exactly rounded operation, so a row's
    bits do not depend on its company.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """``weight`` is fp32 and broadcasts against x; its last dimension is the one reduced."""
        size = weight.shape[-1]
        self._weight = weight * size**0.5
        # A tensor: torch takes several times as long to add a Python number as to add this.
        self._eps = torch.tensor([size * eps], dtype=torch.float32, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype == torch.float32 else x.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        factor = norm.mul_(norm).add_(self._eps).rsqrt_()
        out = torch.mul(wide, factor).mul_(self._weight)
        return out if out.dtype == x.dtype else out.to(x.dtype)
