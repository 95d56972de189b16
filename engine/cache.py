"""The engine's own key/value cache: slots, lengths, append by offset, gather after a tree, crop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftsmith.engine.errors import CapacityError, EngineInputError
from draftsmith.kernels.gather_cache import gather_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    num_layers: int
    num_kv_heads: int
    head_dim: int


class KVCache:
    """``k`` and ``v`` are ``[layers, slots, kv_heads, capacity, head_dim]``. Rows ``0 ..
    lengths[slot]-1`` of a slot are committed; rows after them are drafts, written by
    ``Model.forward`` and either kept or overwritten. ``lengths`` is host data: no device
    synchronisation.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        num_slots: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if num_slots < 1 or capacity < 1:
            raise EngineInputError(
                f"cache needs at least one slot and one row, got {num_slots} slots of {capacity}"
            )
        size = (shape.num_layers, num_slots, shape.num_kv_heads, capacity, shape.head_dim)
        self.k = torch.zeros(size, dtype=dtype, device=device)
        self.v = torch.zeros(size, dtype=dtype, device=device)
        self.capacity = capacity
        self.num_slots = num_slots
        self.lengths = [0] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def device(self) -> torch.device:
        return self.k.device

    @property
    def num_bytes(self) -> int:
        return 2 * self.k.numel() * self.k.element_size()

    def allocate(self) -> int:
        """Take a free slot, its length reset to zero."""
        if not self._free:
            raise CapacityError(
                f"all {self.num_slots} cache slots are taken; lower the concurrency or add slots"
            )
        slot = self._free.pop()
        self.lengths[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        if slot in self._free:
            raise EngineInputError(f"cache slot {slot} is already free")
        self.lengths[slot] = 0
        self._free.append(slot)

    def require(self, slot: int, rows: int) -> None:
        """Raise unless ``rows`` more rows fit behind the committed ones of ``slot``."""
        if self.lengths[slot] + rows > self.capacity:
            raise CapacityError(
                f"slot {slot} holds {self.lengths[slot]} of {self.capacity} rows, {rows} more do"
                " not fit; shorten the prompt, lower max_tokens or raise the cache capacity"
            )

    def keep(self, slot: int, draft_rows: Sequence[int]) -> None:
        """Commit the draft rows named (indices after the committed length, ascending) and forget
        the rest.
        """
        start = self.lengths[slot]
        if any(row != index for index, row in enumerate(draft_rows)):
            gather_cache(self.k, self.v, slot, start, draft_rows)
        self.lengths[slot] = start + len(draft_rows)

    def crop(self, slot: int, length: int) -> None:
        """Forget the committed rows from ``length`` on."""
        if not 0 <= length <= self.lengths[slot]:
            raise EngineInputError(
                f"cannot crop slot {slot} to {length} rows, it holds {self.lengths[slot]}"
            )
        self.lengths[slot] = length
