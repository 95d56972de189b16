"""Short ways to push token rows through a model in tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.model.model import Model
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import RowBatch
from draftsmith.kernels.backend import describe
from draftsmith.kernels.panels import Weight

PLAIN_NOISE = 1e-4  # fp32 logits of these models summed in two orders: the bound to transformers


def chain_rows(cache: KVCache, slot: int, token_ids: Sequence[int]) -> RowBatch:
    """``token_ids`` as the next rows of one slot, in a row."""
    start = cache.lengths[slot]
    return RowBatch(
        slots=(slot,),
        token_ids=torch.tensor([list(token_ids)]),
        positions=torch.arange(start, start + len(token_ids))[None],
        widths=(len(token_ids),),
    )


def tree_rows(cache: KVCache, slot: int, root: int, tree: DraftTree) -> RowBatch:
    """The root and the nodes of ``tree`` as one verify step of one slot."""
    start = cache.lengths[slot]
    return RowBatch(
        slots=(slot,),
        token_ids=torch.tensor([[root, *tree.tokens]]),
        positions=torch.tensor([[start, *(start + depth for depth in tree.depths())]]),
        widths=(1 + len(tree),),
        visible=torch.from_numpy(tree.ancestors())[None],
    )


def logits_of(model: Model, rows: RowBatch, cache: KVCache) -> torch.Tensor:
    """``[B, W, V]`` logits of ``rows``; nothing is committed."""
    hidden = model.forward(rows, cache).last
    return model.head(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])


def commit_chain(model: Model, cache: KVCache, slot: int, token_ids: Sequence[int]) -> torch.Tensor:
    """Run ``token_ids`` as the next rows and keep them all. Returns their logits ``[n, V]``."""
    logits = logits_of(model, chain_rows(cache, slot, token_ids), cache)[0]
    cache.keep(slot, range(len(token_ids)))
    return logits


def assert_same_logits(actual: torch.Tensor, expected: torch.Tensor, *, atol: float) -> None:
    """The same rows computed beside different ones are equal within ``atol``. Plain torch is not
    row-stable: where only the order of its sums sets them further apart, the test skips by name.
    """
    difference = (actual - expected).abs().max().item()
    if atol < difference <= PLAIN_NOISE and not describe().row_stable:
        pytest.skip(
            f"row-stable kernels are not available here: logits differ by {difference:.1e}, "
            f"{atol:g} is asked for"
        )
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


def dense(weight: Weight) -> torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else weight.unpack()


def plain_logits(model: Model, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits ``[n, V]`` of a whole sequence in a cache of its own."""
    cache = model.new_cache(num_slots=1, capacity=len(token_ids))
    return commit_chain(model, cache, cache.allocate(), token_ids)
