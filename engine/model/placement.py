"""Where the new rows of one forward go in the cache: indices computed once, used in every layer."""

from __future__ import annotations

import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.types import RowBatch


class RowPlacement:
    """Writes keys and values ``[B * W, Hkv, D]`` of one ``RowBatch`` behind the committed rows of
    its slots.

    Padding rows are skipped, so they need no capacity. A single slot is a strided copy; several
    slots are one ``index_copy_`` over the flattened cache. Raises CapacityError before anything is
    written.
    """

    def __init__(self, rows: RowBatch, cache: KVCache) -> None:
        check_rows(rows, cache)
        self.lengths = [cache.lengths[slot] for slot in rows.slots]
        self._index: torch.Tensor | None = None
        self._kept: torch.Tensor | None = None
        if len(rows.slots) == 1:
            slot, width = rows.slots[0], rows.widths[0]
            self._width = width
            start = self.lengths[0] + rows.offset
            self._k = cache.k[:, slot, :, start : start + width].unbind(0)
            self._v = cache.v[:, slot, :, start : start + width].unbind(0)
        else:
            self._k, self._v = cache.k.unbind(0), cache.v.unbind(0)
            self._index, self._kept = self._flat_rows(rows, cache)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        k_cache, v_cache = self._k[layer], self._v[layer]
        if self._index is None:
            k_cache.copy_(k[: self._width].transpose(0, 1))
            v_cache.copy_(v[: self._width].transpose(0, 1))
            return
        dim = k.shape[-1]
        if self._kept is not None:
            k, v = k.index_select(0, self._kept), v.index_select(0, self._kept)
        k_cache.view(-1, dim).index_copy_(0, self._index, k.to(k_cache.dtype).reshape(-1, dim))
        v_cache.view(-1, dim).index_copy_(0, self._index, v.to(v_cache.dtype).reshape(-1, dim))

    def _flat_rows(
        self, rows: RowBatch, cache: KVCache
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows of a layer's cache seen as ``[slots * Hkv * capacity, D]``, for every real row and
        head; and which of the ``B * W`` rows are real (None = all).
        """
        num_heads, width = cache.k.shape[2], rows.token_ids.shape[1]
        kept = [b * width + i for b, real in enumerate(rows.widths) for i in range(real)]
        first = [
            slot * num_heads * cache.capacity + length + rows.offset + i
            for slot, length, real in zip(rows.slots, self.lengths, rows.widths, strict=True)
            for i in range(real)
        ]
        heads = torch.arange(0, num_heads * cache.capacity, cache.capacity)
        index = (torch.tensor(first)[:, None] + heads).view(-1).to(cache.k.device)
        if len(kept) == len(rows.slots) * width:
            return index, None
        return index, torch.tensor(kept, device=cache.k.device)


def check_rows(rows: RowBatch, cache: KVCache) -> None:
    """Raise unless ``rows`` is consistent and fits behind the committed rows of its slots."""
    num_slots, width = rows.token_ids.shape
    if len(rows.slots) != num_slots or len(rows.widths) != num_slots:
        raise EngineInputError(
            f"row batch has {num_slots} rows of tokens, {len(rows.slots)} slots and"
            f" {len(rows.widths)} widths; they must be equal"
        )
    if rows.positions.shape != rows.token_ids.shape:
        raise EngineInputError(
            f"positions have shape {list(rows.positions.shape)}, tokens"
            f" {list(rows.token_ids.shape)}"
        )
    if num_slots > 1 and len(set(rows.slots)) != num_slots:
        raise EngineInputError(f"slots {rows.slots} repeat; a slot enters a forward once")
    for slot, real in zip(rows.slots, rows.widths, strict=True):
        if not 0 <= real <= width:
            raise EngineInputError(f"width {real} of slot {slot} is not within 0..{width}")
        cache.require(slot, rows.offset + real)
    expected = (num_slots, width, rows.offset + width)
    if rows.visible is not None and tuple(rows.visible.shape) != expected:
        raise EngineInputError(
            f"visible has shape {list(rows.visible.shape)}, expected {list(expected)}"
        )
