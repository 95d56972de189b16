"""Prompt lookup (algorithms.md B1): copy what followed the last occurrence of the current n-gram.

Rule: the longest n-gram first, ``match_max`` down to ``match_min``; of its occurrences the latest
before the current end (so with n = 1, ``[1,2,3,4,7,3,8,1,2,3]`` continues with 8). Copying is
Lempel-Ziv style: a match nearer than the draft is long goes on reading what it has just copied,
which follows repetitions. The draft ends with the first token that ends the request, that token
included.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.shapes import end_ids, require_int, require_shape
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.trees.tree import EMPTY, DraftTree, chain
from draftsmith.engine.types import Commit, SlotView, SpecConfig

MAX_NGRAM = 64


class _Index:
    """Where each n-gram was last followed by something: n-gram -> position after it. Indexing a
    token costs O(match_max - match_min + 1) insertions, whatever the history.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0  # n-grams that end before this position are in

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the n-grams that end before the last token; the tail itself has no continuation
        yet.
        """
        for end in range(max(self._num_indexed, 1), len(tokens)):
            for length in self._lengths:
                if length <= end:
                    self._after[tuple(tokens[end - length : end])] = end
        self._num_indexed = max(self._num_indexed, len(tokens))

    def find(self, tokens: Sequence[int]) -> int | None:
        """Position of the token that followed the longest known n-gram at the end of ``tokens``."""
        for length in self._lengths:
            if length < len(tokens):
                position = self._after.get(tuple(tokens[-length:]))
                if position is not None:
                    return position
        return None


class NgramDrafter:
    """Chains only. State per slot: the index of the request's own tokens."""

    needs_logits = False

    def __init__(self, config: SpecConfig, context: DrafterContext) -> None:
        require_shape(config, ("chain",))
        require_int("match_min", config.match_min, 1, MAX_NGRAM)
        require_int("match_max", config.match_max, 1, MAX_NGRAM)
        if config.match_min > config.match_max:
            raise EngineInputError(
                f"match_min {config.match_min} is above match_max {config.match_max};"
                " lower the one or raise the other"
            )
        self._config = config
        self._eos_ids = context.target.info.eos_token_ids
        self._indexes: dict[int, _Index] = {}

    def reset(self, slot: int) -> None:
        self._indexes.pop(slot, None)

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        return [self._propose(view) for view in views]

    def observe(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if commit.finished:
                self.reset(commit.slot)

    def _propose(self, view: SlotView) -> DraftTree:
        index = self._indexes.get(view.slot)
        if index is None:
            index = _Index(self._config.match_min, self._config.match_max)
            self._indexes[view.slot] = index
        index.extend(view.tokens)
        position = index.find(view.tokens)
        length = min(self._config.block_size, view.budget)
        if position is None or length < 1:
            return EMPTY
        return chain(self._copy(view, position, length))

    def _copy(self, view: SlotView, position: int, length: int) -> tuple[int, ...]:
        ends = end_ids(view.sampling, self._eos_ids)
        copied: list[int] = []
        for source in range(position, position + length):
            overlap = source - len(view.tokens)
            token = copied[overlap] if overlap >= 0 else view.tokens[source]
            copied.append(token)
            if token in ends:
                break
        return tuple(copied)
