"""Plain torch form of the pass between product and attention; it reads its indices on the host."""

from __future__ import annotations

import torch

from draftsmith.kernels.norm_rope_cache.records import HeadNorm, Rotation
from draftsmith.kernels.ragged import RaggedRows
from draftsmith.kernels.rms_norm.reference import rms_factor


def norm_rope_cache_reference(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: RaggedRows,
    *,
    norm: HeadNorm | None,
    rotation: Rotation | None,
) -> torch.Tensor:
    num_sequences = rows.slots.shape[0]
    num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    qk = heads[:, :-num_kv_heads].float()
    if norm is not None:
        qk = qk * rms_factor(qk, norm.eps) * norm.weight
    if rotation is not None:
        # Positions of padding rows may pass the end.
        known = rotation.positions.clamp(max=rotation.cosine.shape[0] - 1)
        qk = _rotate(qk, rotation.cosine[known][:, None], rotation.sine[known][:, None])
    width = qkv.shape[0] // num_sequences if num_sequences else 0
    q = qk[:, :-num_kv_heads].to(qkv.dtype).view(num_sequences, width, -1, head_dim)
    k = qk[:, -num_kv_heads:].view(num_sequences, width, num_kv_heads, head_dim)
    v = heads[:, -num_kv_heads:].reshape(num_sequences, width, num_kv_heads, head_dim)
    numbers = zip(rows.slots.tolist(), rows.lengths.tolist(), rows.widths.tolist(), strict=True)
    for b, (slot, length, real) in enumerate(numbers):
        start = length + rows.offset
        k_cache[slot, :, start : start + real] = k[b, :real].transpose(0, 1).to(k_cache.dtype)
        v_cache[slot, :, start : start + real] = v[b, :real].transpose(0, 1).to(v_cache.dtype)
    return q


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    size = cosine.shape[-1]
    turned, rest = x[..., :size], x[..., size:]
    turned = turned * cosine + turned.roll(size // 2, -1) * sine
    return torch.cat([turned, rest], dim=-1)
