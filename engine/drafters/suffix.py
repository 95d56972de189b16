"""SuffixDecoding (algorithms.md B4; Oliaro et al. 2024): continue the current suffix as often seen
before.

For every suffix length m that occurred before, in the request itself or in the frozen store, the
drafted tree is grown best-first by counts, ``floor(spec_factor * m)`` nodes at most; its score is
the sum of path shares, the accepted tokens expected. The best score wins; among equal ones the
longer suffix, then the request over the store. ``match_max`` caps suffix length and path length
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.shapes import end_ids, require_int, require_shape, require_share
from draftsmith.engine.drafters.suffix_tree import BOUNDARY, Cursor, Match, SuffixTree
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.trees.dynamic import Candidate, ScoredTree, best_first
from draftsmith.engine.trees.tree import EMPTY, DraftTree
from draftsmith.engine.types import Commit, SlotView, SpecConfig

MAX_DEPTH = 128


@dataclass(slots=True)
class _State:
    """One request: its own tree, and where its suffixes are in the store."""

    own: SuffixTree
    in_store: list[Match] = field(default_factory=list)


class SuffixDrafter:
    """Chains and dynamic trees. State per slot: the suffix tree of the request's own tokens."""

    needs_logits = False

    def __init__(self, config: SpecConfig, context: DrafterContext) -> None:
        require_shape(config, ("chain", "dynamic"))
        require_int("match_min", config.match_min, 1, MAX_DEPTH)
        require_int("match_max", config.match_max, 2, MAX_DEPTH)
        if config.match_min >= config.match_max:
            raise EngineInputError(
                f"match_min {config.match_min} leaves no room under match_max {config.match_max},"
                " which caps a suffix and its draft together; lower the one or raise the other"
            )
        require_share("min_token_prob", config.min_token_prob)
        if not 0.0 < config.spec_factor <= 64.0:
            raise EngineInputError(
                f"spec_factor is {config.spec_factor}; give a number above 0, up to 64"
            )
        self._config = config
        self._is_chain = config.tree == "chain"
        self._num_ranked = 1 if self._is_chain else config.tree_top_k
        self._eos_ids = context.target.info.eos_token_ids
        self._store = self._build_store(context.suffix_store)
        self._states: dict[int, _State] = {}

    def reset(self, slot: int) -> None:
        self._states.pop(slot, None)

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        return [self._propose(view) for view in views]

    def observe(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if commit.finished:
                self.reset(commit.slot)

    def _build_store(self, texts: Sequence[Sequence[int]]) -> SuffixTree | None:
        if not texts:
            return None
        store = self._new_tree()
        for text in texts:
            for token in text:
                store.append(token)
            store.append(BOUNDARY)
        return store

    def _new_tree(self) -> SuffixTree:
        return SuffixTree(max_depth=self._config.match_max, num_ranked=self._num_ranked)

    def _propose(self, view: SlotView) -> DraftTree:
        state = self._states.get(view.slot)
        if state is None:
            state = _State(self._new_tree())
            self._states[view.slot] = state
        for token in view.tokens[len(state.own) :]:
            state.own.append(token)
            if self._store is not None:
                state.in_store = self._store.follow(state.in_store, token)
        ends = end_ids(view.sampling, self._eos_ids)
        best, score = self._best(state.own, state.own.suffix_matches(), view, ends)
        if self._store is not None:
            stored, stored_score = self._best(self._store, state.in_store, view, ends)
            if stored_score > score:
                best = stored
        return DraftTree(best.tokens, best.parents) if best is not None else EMPTY

    def _best(
        self, tree: SuffixTree, matches: Sequence[Match], view: SlotView, ends: frozenset[int]
    ) -> tuple[ScoredTree | None, float]:
        """Best draft over the suffix lengths, and its score; longest first, as a score never
        exceeds its budget.
        """
        best: ScoredTree | None = None
        best_score = 0.0
        for match in reversed(matches):
            budget = self._budget(match.length, view.budget)
            if match.length < self._config.match_min or budget <= best_score:
                break
            grown = self._grow(tree, match, budget, ends)
            score = sum(grown.scores)
            if score > best_score:
                best, best_score = grown, score
        return best, best_score

    def _budget(self, match_length: int, limit: int) -> int:
        config = self._config
        most = config.block_size if self._is_chain else config.tree_budget
        return min(most, limit, int(config.spec_factor * match_length))

    def _grow(
        self, tree: SuffixTree, match: Match, budget: int, ends: frozenset[int]
    ) -> ScoredTree:
        def candidates(state: tuple[int, Cursor]) -> list[Candidate[tuple[int, Cursor]]]:
            last, cursor = state
            if last in ends:
                return []
            return [
                Candidate(token, share, (token, child))
                for token, share, child in tree.continuations(cursor)
            ]

        return best_first(
            (BOUNDARY, match.cursor),
            candidates,
            budget=budget,
            depth=self._config.block_size,
            min_score=self._config.min_token_prob,
        )
