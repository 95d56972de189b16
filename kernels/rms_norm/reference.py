"""Plain torch form of the root-mean-square norm."""

import torch


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * rms_factor(wide, eps) * weight).to(x.dtype)


def rms_factor(x: torch.Tensor, eps: float) -> torch.Tensor:
    """``[..., 1]``. The order of the sum depends on the length of the last dimension alone."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.rsqrt(norm * norm / x.shape[-1] + eps)
