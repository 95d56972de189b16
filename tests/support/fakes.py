"""A target for drafters that ask it for facts only: it has a cache and no numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.engine.cache import CacheShape, KVCache
from draftsmith.engine.model.heads import top_of
from draftsmith.engine.model.model import ModelInfo
from draftsmith.engine.types import HeadRows, Hidden, RowBatch
from draftsmith.kernels.draft_head import TopLogits


class FakeTarget:
    """Implements ``Model``; running it is a test's mistake."""

    def __init__(
        self,
        *,
        vocab_size: int = 64,
        eos_token_ids: tuple[int, ...] = (),
        num_layers: int = 4,
        supports_layer_subsets: bool = True,
        max_positions: int = 4096,
        name: str = "fake",
    ) -> None:
        self.info = ModelInfo(
            name=name,
            family="fake",
            vocab_size=vocab_size,
            num_layers=num_layers,
            hidden_size=8,
            max_positions=max_positions,
            eos_token_ids=eos_token_ids,
            dtype="float32",
            weight_bytes=0,
            head_bytes=0,
            layers_bytes=0,
            fingerprint=name,
            supports_layer_subsets=supports_layer_subsets,
            row_stable=True,
        )

    def new_cache(self, *, num_slots: int, capacity: int) -> KVCache:
        return KVCache(
            CacheShape(num_layers=1, num_kv_heads=1, head_dim=1),
            num_slots=num_slots,
            capacity=capacity,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )

    def forward(
        self,
        rows: RowBatch,
        cache: KVCache,
        *,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> Hidden:
        raise AssertionError("a fake target was run")

    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        raise AssertionError("a fake target's head was run")

    def top(
        self,
        hidden: torch.Tensor,
        count: int,
        trimmed: HeadRows | None = None,
        *,
        with_log_sum: bool = False,
    ) -> TopLogits:
        return top_of(self.head(hidden, trimmed), count, with_log_sum=with_log_sum)

    def trim_head(self, token_ids: Sequence[int]) -> HeadRows:
        ids = torch.tensor(sorted(token_ids))
        return HeadRows(ids, torch.zeros(len(ids), 8))
