"""A drafter of matches backed by token recycling: drafts shorter than ``fallback_size``, none at
all among them, are continued by the target's own runners-up.

A match is worth more than recycling's guess, so it comes first; behind and between matches,
verifying one or two rows more costs next to nothing where a step waits for its weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.engine.drafters.drafter import Drafter, DrafterContext
from draftsmith.engine.drafters.recycle import RecycleDrafter
from draftsmith.engine.drafters.shapes import require_int
from draftsmith.engine.trees.tree import DraftTree, chain
from draftsmith.engine.types import Commit, SlotView, SpecConfig

MAX_FALLBACK = 8


class BackedDrafter:
    """``first`` proposes; its chains are filled up to ``config.fallback_size`` tokens, trees are
    left as they are. Needs the target's logits of every verified row.
    """

    needs_logits = True

    def __init__(self, first: Drafter, config: SpecConfig, context: DrafterContext) -> None:
        self._size = require_int("fallback_size", config.fallback_size, 0, MAX_FALLBACK)
        self._first = first
        self._recycle = RecycleDrafter(SpecConfig(drafter="recycle", recycle_k=1), context)

    def reset(self, slot: int) -> None:
        self._first.reset(slot)
        self._recycle.reset(slot)

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        trees = self._first.propose(views)
        return [self._filled(view, tree) for view, tree in zip(views, trees, strict=True)]

    def observe(self, commits: Sequence[Commit]) -> None:
        self._first.observe(commits)
        self._recycle.observe(commits)

    def _filled(self, view: SlotView, tree: DraftTree) -> DraftTree:
        size = min(self._size, view.budget)
        if len(tree) < size and tree.is_chain:
            path = self._recycle.path(view, (view.tokens[-1], *tree.tokens), size - len(tree))
            tree = chain((*tree.tokens, *path)) if path else tree
        self._recycle.note(view, tree)
        return tree
