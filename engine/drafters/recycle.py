"""Token recycling (algorithms.md B5; Luo et al. 2024): the target's own runners-up, kept and drawn
as a tree.

Per slot a table gives each token its successors: at first those that followed it in the prompt
(latest first), then, from every verified row whether accepted or not, the target's ``recycle_k``
best tokens after it. The draft puts the table's ranks on a fixed template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.shapes import (
    end_ids,
    fill_template,
    make_template,
    require_int,
    require_shape,
)
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, SlotView, SpecConfig
from draftsmith.kernels.top_k import top_k

MAX_SUCCESSORS = 64


@dataclass(slots=True)
class _State:
    """One request: token -> successors, best first; and the tokens of the verified rows."""

    successors: dict[int, tuple[int, ...]]
    row_tokens: tuple[int, ...] = ()


class RecycleDrafter:
    """Chains and static trees. Needs the target's logits of every verified row."""

    needs_logits = True

    def __init__(self, config: SpecConfig, context: DrafterContext) -> None:
        require_shape(config, ("chain", "static"))
        vocab_size = context.target.info.vocab_size
        self._num_kept = require_int(
            "recycle_k", config.recycle_k, 1, min(MAX_SUCCESSORS, vocab_size)
        )
        self._template = make_template(config, context.rank_acceptance, max_ranks=self._num_kept)
        self._eos_ids = context.target.info.eos_token_ids
        self._states: dict[int, _State] = {}

    def reset(self, slot: int) -> None:
        self._states.pop(slot, None)

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        return [self._propose(view) for view in views]

    def observe(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            state = self._states.get(commit.slot)
            if commit.finished:
                self.reset(commit.slot)
            elif state is not None and commit.logits is not None:
                self._learn(state, commit.logits)

    def note(self, view: SlotView, tree: DraftTree) -> None:
        """``tree``, drafted here or elsewhere, is verified in this step: its rows teach."""
        self._state(view).row_tokens = (view.tokens[-1], *tree.tokens)

    def path(self, view: SlotView, before: Sequence[int], size: int) -> tuple[int, ...]:
        """At most ``size`` tokens that follow ``before`` by the best successors; none where the
        last token has none or ends the request.
        """
        table, ends = self._state(view).successors, end_ids(view.sampling, self._eos_ids)
        token, found = before[-1], list[int]()
        while len(found) < size and token not in ends and token in table:
            token = table[token][0]
            found.append(token)
        return tuple(found)

    def _state(self, view: SlotView) -> _State:
        state = self._states.get(view.slot)
        if state is None:
            state = _State(self._seed(view.tokens))
            self._states[view.slot] = state
        return state

    def _propose(self, view: SlotView) -> DraftTree:
        state = self._state(view)
        table = state.successors
        tree = fill_template(
            self._template,
            view.budget,
            view.tokens[-1],
            lambda token, _: table.get(token, ()),
            end_ids(view.sampling, self._eos_ids),
        )
        self.note(view, tree)
        return tree

    def _seed(self, tokens: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Bigrams of the prompt: the tokens that followed, latest first, at most ``recycle_k``."""
        table: dict[int, tuple[int, ...]] = {}
        for token, following in zip(reversed(tokens[:-1]), reversed(tokens[1:]), strict=True):
            known = table.get(token, ())
            if len(known) < self._num_kept and following not in known:
                table[token] = (*known, following)
        return table

    def _learn(self, state: _State, logits: torch.Tensor) -> None:
        """``logits`` ``[1 + n, V]`` of the rows proposed last; a token met twice keeps its later
        row.
        """
        best = top_k(logits, self._num_kept).tolist()
        for token, row in zip(state.row_tokens, best, strict=False):
            state.successors[token] = tuple(row)
        state.row_tokens = ()  # a step without a draft of ours tells nothing about these
