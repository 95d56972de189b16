"""The new rows of a batch, as the GPU kernels take them: made once a forward, for every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPaths:
    """For each row the draft rows that it sees, in cache order: ``rows[b, i, :counts[b, i]]``."""

    rows: torch.Tensor  # [B, W, offset + W] int32
    counts: torch.Tensor  # [B, W] int32


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedRows:
    """Row i < widths[b] of sequence b has cache row lengths[b] + offset + i of slots[b]. ``paths``
    None: each row sees the draft rows up to its own. The host knows of the lengths only that none
    passes ``max_length``.
    """

    slots: torch.Tensor  # [B] int32, as the next two
    lengths: torch.Tensor
    widths: torch.Tensor
    offset: int
    max_length: int
    paths: DraftPaths | None


def ragged_rows(
    slots: Sequence[int],
    lengths: Sequence[int],
    widths: Sequence[int],
    *,
    offset: int,
    visible: torch.Tensor | None,
    device: torch.device,
) -> RaggedRows:
    """One copy to the device; ``visible`` is ``[B, W, offset + W]`` bool, or None for chains."""
    numbers = torch.tensor([[*slots], [*lengths], [*widths]], dtype=torch.int32).to(device)
    return RaggedRows(
        slots=numbers[0],
        lengths=numbers[1],
        widths=numbers[2],
        offset=offset,
        max_length=max(lengths, default=0),
        paths=None if visible is None else draft_paths(visible, numbers[2], offset),
    )


def draft_paths(visible: torch.Tensor, widths: torch.Tensor, offset: int) -> DraftPaths:
    """Without asking the device: rows past a sequence's width are seen by nobody."""
    num_keys = visible.shape[2]
    key = torch.arange(num_keys, device=visible.device)
    seen = visible & (key < offset + widths[:, None, None])
    rank = seen.cumsum(2)
    # Unseen rows all go to one place past the end, which is cut off.
    place = torch.where(seen, rank - 1, num_keys)
    rows = torch.zeros(
        *(*visible.shape[:2], num_keys + 1), dtype=torch.int32, device=visible.device
    )
    rows.scatter_(2, place, key.to(torch.int32).expand_as(place))
    counts = rank[:, :, -1] if num_keys else rank.sum(2)
    return DraftPaths(rows=rows[:, :, :num_keys].contiguous(), counts=counts.to(torch.int32))
