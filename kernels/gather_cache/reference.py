"""Plain torch form of the cache compaction."""

from collections.abc import Sequence

import torch


def gather_cache_reference(
    k: torch.Tensor, v: torch.Tensor, slot: int, start: int, rows: Sequence[int]
) -> None:
    if not rows:
        return
    index = torch.tensor([start + row for row in rows], device=k.device)
    stop = start + len(rows)
    k[:, slot, :, start:stop] = k[:, slot].index_select(2, index)
    v[:, slot, :, start:stop] = v[:, slot].index_select(2, index)


def gather_cache_ragged_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    rows: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Reads its indices on the host."""
    for b, count in enumerate(counts.tolist()):
        kept = rows[b, :count].tolist()
        gather_cache_reference(k, v, int(slots[b]), int(starts[b]), kept)
