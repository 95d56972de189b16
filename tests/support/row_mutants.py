"""Mutants of the rows: positions, masks, cache, prefill, batch, the drafters' own caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from mutant import Mutant
from token_mutants import BOTH, TREES

from draftsmith.engine import cache as cache_module
from draftsmith.engine import decode
from draftsmith.engine.batch import Running, causal_rows, real_rows, verify_rows
from draftsmith.engine.cache import KVCache
from draftsmith.engine.decode import DecodeLoop, prefill
from draftsmith.engine.drafters.draft_model import DraftModelDrafter
from draftsmith.engine.drafters.early_exit import EarlyExitDrafter
from draftsmith.engine.model import decoder
from draftsmith.engine.model.fused import FusedLayers
from draftsmith.engine.model.model import Model
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Hidden, RowBatch, SlotView
from draftsmith.engine.verify import Verdict
from draftsmith.kernels.gather_cache import gather_cache
from draftsmith.kernels.tree_attention import tree_attention

DRAFT_MODEL = ("draft-model", "draft-model-tree")
EXITS = ("exit-chain", "exit-static", "exit-dynamic")


def _change_rows(
    patch: pytest.MonkeyPatch, change: Callable[[RowBatch, Sequence[DraftTree]], RowBatch]
) -> None:
    """``change`` sees the rows of a verify step and their trees."""
    patch.setattr(
        decode, "verify_rows", lambda running, trees: change(verify_rows(running, trees), trees)
    )


def positions_flat(patch: pytest.MonkeyPatch) -> None:
    """Flat index instead of depth (cases.md B21)."""

    def change(rows: RowBatch, _: Sequence[DraftTree]) -> RowBatch:
        flat = torch.arange(rows.positions.shape[1])
        return replace(rows, positions=rows.positions[:, :1] + flat)

    _change_rows(patch, change)


def positions_of_drafts(patch: pytest.MonkeyPatch) -> None:
    def change(rows: RowBatch, _: Sequence[DraftTree]) -> RowBatch:
        positions = rows.positions.clone()
        positions[:, 1:] += 1
        return replace(rows, positions=positions)

    _change_rows(patch, change)


def positions_of_all(patch: pytest.MonkeyPatch) -> None:
    _change_rows(patch, lambda rows, _: replace(rows, positions=rows.positions + 1))


def _change_mask(
    patch: pytest.MonkeyPatch, change: Callable[[torch.Tensor, DraftTree], None]
) -> None:
    """``change`` edits the mask ``[n + 1, n + 1]`` of one tree in place; chains have none."""

    def edited(rows: RowBatch, trees: Sequence[DraftTree]) -> RowBatch:
        if rows.visible is not None:
            for b, tree in enumerate(trees):
                change(rows.visible[b], tree)
        return rows

    _change_rows(patch, edited)


def mask_without_parent(patch: pytest.MonkeyPatch) -> None:
    def change(mask: torch.Tensor, tree: DraftTree) -> None:
        for node, parent in enumerate(tree.parents):
            if parent >= 0:
                mask[node + 1, parent + 1] = False

    _change_mask(patch, change)


def mask_without_root(patch: pytest.MonkeyPatch) -> None:
    def change(mask: torch.Tensor, tree: DraftTree) -> None:
        for node, depth in enumerate(tree.depths()):
            if depth >= 2:
                mask[node + 1, 0] = False

    _change_mask(patch, change)


def mask_with_sibling(patch: pytest.MonkeyPatch) -> None:
    def change(mask: torch.Tensor, tree: DraftTree) -> None:
        for node, parent in enumerate(tree.parents):
            for sibling in tree.children(parent):
                if sibling < node:
                    mask[node + 1, sibling + 1] = True

    _change_mask(patch, change)


def mask_with_stale_bits(patch: pytest.MonkeyPatch) -> None:
    """A reused mask buffer, not cleared (cases.md B21)."""
    buffer = torch.zeros(0, 0, dtype=torch.bool)

    def change(mask: torch.Tensor, tree: DraftTree) -> None:
        nonlocal buffer
        size = min(len(buffer), len(tree) + 1)
        mask[:size, :size] |= buffer[:size, :size]
        if len(mask) > len(buffer):
            buffer = mask.clone()

    _change_mask(patch, change)


def tree_as_chain(patch: pytest.MonkeyPatch) -> None:
    _change_rows(patch, lambda rows, _: replace(rows, visible=None))


def padding_seen(patch: pytest.MonkeyPatch) -> None:
    """Padding rows count as real, and real rows see them."""

    def change(rows: RowBatch, trees: Sequence[DraftTree]) -> RowBatch:
        count, width = rows.token_ids.shape
        visible = rows.visible
        if visible is None:
            visible = torch.ones(width, width, dtype=torch.bool).tril().repeat(count, 1, 1)
        for b, real in enumerate(rows.widths):
            visible[b, :, real:] = True
        return replace(rows, visible=visible, widths=(width,) * count)

    _change_rows(patch, change)


def _change_gather(
    patch: pytest.MonkeyPatch,
    change: Callable[[torch.Tensor, torch.Tensor, int, int, Sequence[int]], None],
) -> None:
    patch.setattr(cache_module, "gather_cache", change)


def gather_wrong_row(patch: pytest.MonkeyPatch) -> None:
    _change_gather(
        patch,
        lambda k, v, slot, start, rows: gather_cache(
            k, v, slot, start, [row - (row > index) for index, row in enumerate(rows)]
        ),
    )


def gather_skipped(patch: pytest.MonkeyPatch) -> None:
    _change_gather(patch, lambda k, v, slot, start, rows: None)


def gather_keys_only(patch: pytest.MonkeyPatch) -> None:
    _change_gather(
        patch,
        lambda k, v, slot, start, rows: gather_cache(k, v.clone(), slot, start, rows),
    )


def gather_last_layer_left_out(patch: pytest.MonkeyPatch) -> None:
    _change_gather(
        patch, lambda k, v, slot, start, rows: gather_cache(k[:-1], v[:-1], slot, start, rows)
    )


def gather_overlapping(patch: pytest.MonkeyPatch) -> None:
    """Row by row from the end: a source may be overwritten before it is read."""

    def change(
        k: torch.Tensor, v: torch.Tensor, slot: int, start: int, rows: Sequence[int]
    ) -> None:
        for index in range(len(rows) - 1, -1, -1):
            gather_cache(k, v, slot, start + index, [rows[index] - index])

    _change_gather(patch, change)


def _after_full_acceptance(patch: pytest.MonkeyPatch, change: int) -> None:
    original = DecodeLoop._commit

    def commit(
        self: DecodeLoop,
        running: Sequence[Running],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        *args: Any,
    ) -> None:
        original(self, running, trees, verdicts, *args)
        for one, tree, verdict in zip(running, trees, verdicts, strict=True):
            if verdict.path and len(verdict.path) == max(tree.depths()):
                self._cache.lengths[one.slot] += change

    patch.setattr(DecodeLoop, "_commit", commit)


def length_over(patch: pytest.MonkeyPatch) -> None:
    _after_full_acceptance(patch, 1)


def length_under(patch: pytest.MonkeyPatch) -> None:
    _after_full_acceptance(patch, -1)


def slot_not_emptied(patch: pytest.MonkeyPatch) -> None:
    """The first row of a slot's last tenant stays."""
    original = KVCache.release

    def release(self: KVCache, slot: int) -> None:
        original(self, slot)
        self.lengths[slot] = 1

    allocate = KVCache.allocate

    def allocate_unreset(self: KVCache) -> int:
        before = list(self.lengths)
        slot = allocate(self)
        self.lengths[slot] = before[slot]
        return slot

    patch.setattr(KVCache, "release", release)
    patch.setattr(KVCache, "allocate", allocate_unreset)


def prefill_boundary(patch: pytest.MonkeyPatch) -> None:
    """Positions of later prefill chunks start one too low."""
    patch.setattr(decode, "PREFILL_CHUNK", 5)

    def shifted(slot: int, token_ids: Sequence[int], start: int) -> RowBatch:
        return causal_rows(slot, token_ids, start - (start > 0))

    patch.setattr(decode, "causal_rows", shifted)


def prefill_row(patch: pytest.MonkeyPatch) -> None:
    """The first token is chosen from the last row but one."""

    def short(model: Model, cache: KVCache, slot: int, token_ids: Sequence[int]) -> torch.Tensor:
        hidden = prefill(model, cache, slot, token_ids)
        return hidden[:-1] if len(hidden) > 1 else hidden

    patch.setattr(decode, "prefill", short)


def swapped_siblings(patch: pytest.MonkeyPatch) -> None:
    original = DecodeLoop._judge

    def judge(
        self: DecodeLoop,
        logits: torch.Tensor,
        widths: Sequence[int],
        running: Sequence[Running],
        trees: Sequence[DraftTree],
    ) -> list[Verdict]:
        logits = logits.clone()
        start = 0
        for width, tree in zip(widths, trees, strict=True):
            for parent in range(-1, len(tree)):
                pair = [start + 1 + node for node in tree.children(parent)[:2]]
                if len(pair) == 2:
                    logits[pair] = logits[pair[::-1]]
            start += width
        return original(self, logits, widths, running, trees)

    patch.setattr(DecodeLoop, "_judge", judge)


def ragged_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows of a ragged batch read as if there was no padding."""
    patch.setattr(decode, "real_rows", lambda hidden, widths: hidden.flatten(0, 1)[: sum(widths)])


def neighbours_rows(patch: pytest.MonkeyPatch) -> None:
    """Each request of a batch gets the rows of the next."""
    patch.setattr(decode, "real_rows", lambda hidden, widths: real_rows(hidden.roll(1, 0), widths))


def window_of_drafts(patch: pytest.MonkeyPatch) -> None:
    """The sliding window is one short where several rows are verified."""

    def attention(q: torch.Tensor, *args: Any, window: int | None, **kwargs: Any) -> torch.Tensor:
        if window is not None and q.shape[1] > 1:
            window -= 1
        return tree_attention(q, *args, window=window, **kwargs)

    original = FusedLayers.forward

    def forward(self: FusedLayers, rows: RowBatch, *args: Any) -> Hidden:
        layers = [layer for layer in self._layers._table if layer.window]
        change = int(rows.token_ids.shape[1] > 1)
        for layer in layers:
            layer.window -= change
        try:
            return original(self, rows, *args)
        finally:
            for layer in layers:
                layer.window += change

    patch.setattr(decoder, "tree_attention", attention)
    patch.setattr(FusedLayers, "forward", forward)


def exit_rows_committed(patch: pytest.MonkeyPatch) -> None:
    """The lower layers' row of the root stays in the cache as if committed."""
    original = EarlyExitDrafter.propose

    def propose(self: EarlyExitDrafter, views: Sequence[SlotView]) -> list[DraftTree]:
        trees = original(self, views)
        for view in views:
            if len(view.tokens) % 4 == 0:
                self._cache.keep(view.slot, [0])
        return trees

    patch.setattr(EarlyExitDrafter, "propose", propose)


def draft_crop_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The draft model keeps rejected rows where committed ones should be."""

    def keep_committed(self: DraftModelDrafter, view: SlotView) -> None:
        forwarded = self._forwarded.pop(view.slot, {})
        room = len(view.tokens) - 1 - self.cache.lengths[view.slot]
        self.cache.keep(view.slot, range(min(len(forwarded), room)))

    patch.setattr(DraftModelDrafter, "_keep_committed", keep_committed)


def draft_cache_hole(patch: pytest.MonkeyPatch) -> None:
    """After full acceptance the last proposal is never fed (cases.md B3)."""
    original = DraftModelDrafter._keep_committed

    def keep_committed(self: DraftModelDrafter, view: SlotView) -> None:
        original(self, view)
        if view.prompt_len < self.cache.lengths[view.slot] == len(view.tokens) - 2:
            self.cache.lengths[view.slot] += 1

    patch.setattr(DraftModelDrafter, "_keep_committed", keep_committed)


ROW_MUTANTS = (
    Mutant("positions flat", "flat index instead of depth", positions_flat, TREES),
    Mutant("positions of drafts", "one too high for draft rows", positions_of_drafts, BOTH),
    Mutant("positions of all", "one too high after the prefill", positions_of_all, BOTH),
    Mutant("mask hole: parent", "a node does not see its parent", mask_without_parent, TREES),
    Mutant("mask hole: root", "deep nodes do not see the root", mask_without_root, TREES),
    Mutant("mask leak: sibling", "a node sees earlier siblings", mask_with_sibling, TREES),
    Mutant(
        "mask stale",
        "bits of a larger, earlier tree",
        mask_with_stale_bits,
        (*TREES, "exit-dynamic"),
    ),
    Mutant("tree as chain", "the mask is left out", tree_as_chain, TREES),
    Mutant(
        "padding seen",
        "padding rows leak into a ragged batch",
        padding_seen,
        ("ngram", "suffix-tree"),
        {},
        4,
    ),
    Mutant("wrong sibling kept", "gather takes the row before", gather_wrong_row, TREES),
    Mutant("stale row", "gather left out", gather_skipped, TREES),
    Mutant("stale values", "gather moves keys only", gather_keys_only, TREES),
    Mutant("stale layer", "gather leaves out the last layer", gather_last_layer_left_out, TREES),
    Mutant("gather overlap", "a source overwritten before it is read", gather_overlapping, TREES),
    Mutant("length over", "one row too many after full acceptance", length_over, BOTH),
    Mutant("length under", "one row short after full acceptance", length_under, BOTH),
    Mutant("slot not emptied", "a row of the last tenant stays", slot_not_emptied, BOTH),
    Mutant("prefill boundary", "later chunks start one too low", prefill_boundary, BOTH),
    Mutant("prefill row", "first token from the row before", prefill_row, BOTH),
    Mutant("swapped siblings", "two siblings' logits exchanged", swapped_siblings, TREES),
    Mutant(
        "ragged rows",
        "padding not skipped when reading rows",
        ragged_rows,
        ("ngram", "suffix-tree"),
        {},
        4,
    ),
    Mutant(
        "neighbour's rows", "rows of the next request in the batch", neighbours_rows, BOTH, {}, 4
    ),
    Mutant("window", "one short for verified rows", window_of_drafts, BOTH, {}, 1, "mistral"),
    Mutant("exit rows kept", "rows of lower layers count as committed", exit_rows_committed, EXITS),
    Mutant("draft crop", "the draft model keeps rejected rows", draft_crop_forgotten, DRAFT_MODEL),
    Mutant("draft hole", "the draft model misses a token", draft_cache_hole, DRAFT_MODEL),
)
