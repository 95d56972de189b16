"""Plain torch form of attention over committed rows and draft ancestors."""

from collections.abc import Sequence

import torch


def tree_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    slots: Sequence[int],
    lengths: Sequence[int],
    widths: Sequence[int],
    offset: int,
    visible: torch.Tensor | None,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    group = q.shape[2] // k_cache.shape[1]
    out = torch.zeros_like(q)
    for b, (slot, length, width) in enumerate(zip(slots, lengths, widths, strict=True)):
        num_keys = length + offset + width
        seen = _seen(visible, b, length, offset, width, q.device)  # [w, keys]
        rank = seen.cumsum(1)  # logical position + 1 of the visible keys
        if window is not None:
            seen = seen & (rank > rank[:, -1:] - window)
        used = seen.any(0)
        keys = torch.where(used[:, None], k_cache[slot, :, :num_keys].float(), 0.0)
        values = torch.where(used[:, None], v_cache[slot, :, :num_keys].float(), 0.0)
        rows = q[b, :width].float().transpose(0, 1)  # [Hq, w, D]
        scores = rows @ keys.repeat_interleave(group, 0).transpose(1, 2) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        weights = torch.where(seen.any(1)[:, None], weights, 0.0)  # a row that sees nothing: zeros
        mixed = weights @ values.repeat_interleave(group, 0)  # [Hq, w, D]
        out[b, :width] = mixed.transpose(0, 1).to(q.dtype)
    return out


def _seen(
    visible: torch.Tensor | None,
    b: int,
    length: int,
    offset: int,
    width: int,
    device: torch.device,
) -> torch.Tensor:
    """``[w, length + offset + w]`` bool: which cache rows each row sees, no window applied."""
    if visible is None:
        last = torch.arange(width, device=device)[:, None] + offset
        drafts = torch.arange(offset + width, device=device) <= last
    else:
        drafts = visible[b, :width, : offset + width]
    prefix = torch.ones(width, length, dtype=torch.bool, device=device)
    return torch.cat([prefix, drafts], dim=1)
