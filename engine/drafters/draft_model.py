"""A second, smaller model drafts; it has its own cache, kept in step with what was committed.

Before each draft the cache holds every committed token but the root. It gets there from the draft
rows of the last step: those on the committed path are kept, the others dropped, and tokens that
were never fed (after a fully accepted step the last proposal, cases.md B3; after a wrong one
nothing) go in with the root as one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from draftsmith.engine.batch import real_rows
from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.expansion import Growth, expand
from draftsmith.engine.drafters.plan import make_expansion
from draftsmith.engine.drafters.vocabulary import draft_head
from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, RowBatch, SlotView, SpecConfig

CATCH_UP_ROWS = 256  # rows a slot feeds in one forward; a prompt goes in by such chunks

Forwarded = dict[tuple[int, int], int]  # (parent's draft row or -1, token) -> draft row


class DraftModelDrafter:
    """Chains, static and dynamic trees, over the whole or a trimmed vocabulary. State per slot: the
    committed rows of its cache, and which draft rows of the last step stand for which path.
    """

    needs_logits = False

    def __init__(self, config: SpecConfig, context: DrafterContext) -> None:
        if context.draft_model is None:
            raise EngineInputError(
                "drafter draft_model needs a loaded model; give its checkpoint folder (draft_model)"
            )
        target, draft = context.target.info, context.draft_model.info
        if draft.vocab_size != target.vocab_size:
            raise UnsupportedError(
                f"draft model {draft.name} has a vocabulary of {draft.vocab_size} tokens, target"
                f" {target.name} of {target.vocab_size}; use one with the target's tokenizer"
            )
        self._model = context.draft_model
        head = draft_head(self._model, config.draft_vocab, context)
        self._plan = make_expansion(config, context, self._model, head)
        self.cache = self._model.new_cache(
            num_slots=context.cache.num_slots, capacity=context.cache.capacity
        )
        self._forwarded: dict[int, Forwarded] = {}

    def reset(self, slot: int) -> None:
        self.cache.crop(slot, 0)
        self._forwarded.pop(slot, None)

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        expanded = expand(views, self, self._plan)
        for growth in expanded.growths:
            if growth.rows:
                self._forwarded[growth.view.slot] = _forwarded(growth)
        return expanded.trees

    def observe(self, commits: Sequence[Commit]) -> None:
        """The committed tokens come with the next views; the cache is put in step there."""

    def roots(self, views: Sequence[SlotView]) -> torch.Tensor:
        """Catch up with the committed tokens; the last chunk ends with the root of every slot."""
        for view in views:
            self._keep_committed(view)
        while True:
            late = [view for view in views if self._num_missing(view) > CATCH_UP_ROWS]
            if not late:
                break
            rows = self._rows(late, [CATCH_UP_ROWS] * len(late))
            self._model.forward(rows, self.cache)
            for view in late:
                self._commit(view, CATCH_UP_ROWS)
        rows = self._rows(views, [self._num_missing(view) for view in views])
        hidden = self._model.forward(rows, self.cache).last
        for view, width in zip(views, rows.widths, strict=True):
            self._commit(view, width - 1)  # the root stays a draft row, now the first
        return torch.stack([hidden[b, width - 1] for b, width in enumerate(rows.widths)])

    def nodes(self, rows: RowBatch) -> torch.Tensor:
        return real_rows(self._model.forward(rows, self.cache).last, rows.widths)

    def room(self, slot: int) -> int:
        return self.cache.capacity - self.cache.lengths[slot]

    def _num_missing(self, view: SlotView) -> int:
        """Tokens not in the cache, the root included: at least 1."""
        return len(view.tokens) - self.cache.lengths[view.slot]

    def _commit(self, view: SlotView, num_rows: int) -> None:
        self.cache.keep(view.slot, range(num_rows))

    def _keep_committed(self, view: SlotView) -> None:
        """Of the last step's draft rows keep those that the committed tokens went along."""
        forwarded = self._forwarded.pop(view.slot, {})
        length = self.cache.lengths[view.slot]
        path: list[int] = []
        row = -1
        for token in view.tokens[length : len(view.tokens) - 1]:
            following = forwarded.get((row, token))
            if following is None:
                break
            row = following
            path.append(row)
        self.cache.keep(view.slot, path)

    def _rows(self, views: Sequence[SlotView], widths: Sequence[int]) -> RowBatch:
        """The first ``widths`` missing tokens of every view, as chains."""
        token_ids = np.zeros((len(views), max(widths)), dtype=np.int64)
        positions = np.zeros_like(token_ids)
        for b, (view, width) in enumerate(zip(views, widths, strict=True)):
            length = self.cache.lengths[view.slot]
            token_ids[b, :width] = view.tokens[length : length + width]
            positions[b, :width] = np.arange(length, length + width)
        return RowBatch(
            slots=tuple(view.slot for view in views),
            token_ids=torch.from_numpy(token_ids),
            positions=torch.from_numpy(positions),
            widths=tuple(widths),
        )


def _forwarded(growth: Growth) -> Forwarded:
    """Which draft row stands for which token after which row; the root after row -1."""
    known: Forwarded = {(-1, growth.view.tokens[-1]): 0}
    for node, path in growth.rows.items():
        if node >= 0:
            known[path[-2], growth.tokens[node]] = path[-1]
    return known
