"""What the engine asks of a target or of a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.types import HeadRows, Hidden, RowBatch
from draftsmith.kernels.draft_head import TopLogits


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts of a loaded model that other parts read. ``fingerprint`` hashes config and weights.
    Bytes are those that memory holds: of all weights, of the head, and of everything that a step
    reads before the head; an embedding apart from the head is read a row at a time and in neither.
    """

    name: str
    family: str
    vocab_size: int
    num_layers: int
    hidden_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    weight_bytes: int
    head_bytes: int
    layers_bytes: int
    fingerprint: str
    supports_layer_subsets: bool
    row_stable: bool


class Model(Protocol):
    """A causal LM over the engine's cache. Stateless but for the cache it is given."""

    @property
    def info(self) -> ModelInfo: ...

    def new_cache(self, *, num_slots: int, capacity: int) -> KVCache:
        """A cache that fits this model, on its device."""
        ...

    def forward(
        self,
        rows: RowBatch,
        cache: KVCache,
        *,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> Hidden:
        """Run ``rows`` through ``layers`` (None = all, ascending), writing their keys and values
        behind the committed rows; lengths are not changed. ``capture`` names layers whose outputs
        are returned too.
        """
        ...

    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        """Final norm and (trimmed) head: ``[N, H]`` -> fp32 logits ``[N, V]`` or ``[N, Vd]``."""
        ...

    def top(
        self,
        hidden: torch.Tensor,
        count: int,
        trimmed: HeadRows | None = None,
        *,
        with_log_sum: bool = False,
    ) -> TopLogits:
        """The ``count`` largest logits of each row of ``head(hidden, trimmed)``, where it can be
        without making the others. ``columns`` are those of the trimmed head.
        """
        ...

    def trim_head(self, token_ids: Sequence[int]) -> HeadRows:
        """Gather head rows once for a draft vocabulary (ids sorted ascending, unique)."""
        ...
