"""What the norms of q and k and their rotation take."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorm:
    weight: torch.Tensor  # [Hq + Hkv, D] fp32
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """``cosine`` and ``sine`` ``[P, R]`` fp32, ``positions`` int64 ``[B W]``, all under P."""

    cosine: torch.Tensor
    sine: torch.Tensor
    positions: torch.Tensor
