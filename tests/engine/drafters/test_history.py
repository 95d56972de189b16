"""What a drafting step touches does not grow with the history: counted, not timed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.registry import make_drafter
from draftsmith.engine.drafters.suffix_tree import Cursor, SuffixTree
from draftsmith.engine.native import max_nodes
from draftsmith.engine.types import Commit, Sampling, SlotView, SpecConfig
from tests.support.fakes import FakeTarget

VOCAB = 64
DEPTH = 6
CONFIGS = {
    "ngram chain": SpecConfig(drafter="ngram", block_size=5),
    "suffix chain": SpecConfig(drafter="suffix", block_size=5, match_max=DEPTH),
    "suffix dynamic tree": SpecConfig(
        drafter="suffix", block_size=5, match_max=DEPTH, tree="dynamic", tree_budget=12
    ),
    "recycle chain": SpecConfig(drafter="recycle", block_size=4),
    "recycle static tree": SpecConfig(
        drafter="recycle", block_size=4, tree="static", tree_budget=16
    ),
}
TAIL = tuple(range(12)) * 2  # repeats itself, so that there is something to draft


class CountedTokens(list[int]):
    """A request's tokens; counts those that are looked at."""

    looked_at = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.looked_at += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Any:
        self.looked_at += len(self)
        return super().__iter__()

    def __reversed__(self) -> Any:
        self.looked_at += len(self)
        return super().__reversed__()


def text(length: int) -> list[int]:
    """Words of a few tokens, over and over in changing order, and then the tail."""
    draw = random.Random(1)
    words = [[draw.randrange(VOCAB) for _ in range(5)] for _ in range(20)]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += draw.choice(words)
    return tokens[:length] + list(TAIL)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_looks_at_as_many_tokens_after_a_long_history_as_after_a_short_one(
    name: str,
) -> None:
    config = CONFIGS[name]
    looked_at = {}
    for length in (100, 20_000):
        target = FakeTarget(vocab_size=VOCAB)
        cache = target.new_cache(num_slots=1, capacity=1)
        drafter = make_drafter(config, DrafterContext(target=target, cache=cache))
        assert drafter is not None
        tokens = CountedTokens(text(length))
        view = SlotView(0, tokens, len(tokens), Sampling(), max_nodes(config))
        drafter.propose([view])
        tokens.looked_at = 0
        for token in TAIL:
            tokens.append(token)
            (tree,) = drafter.propose([view])
            assert len(tree) > 0
            logits = torch.eye(VOCAB)[: 1 + len(tree)] if drafter.needs_logits else None
            drafter.observe([Commit(0, (token,), (), False, logits)])
        looked_at[length] = tokens.looked_at
    assert looked_at[20_000] == looked_at[100]


def test_a_token_visits_no_more_nodes_than_the_depth_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    visits: list[int] = []
    visit = SuffixTree._visit

    def counted(self: SuffixTree, *arguments: Any) -> Any:
        visits.append(1)
        return visit(self, *arguments)

    monkeypatch.setattr(SuffixTree, "_visit", counted)
    tree = SuffixTree(max_depth=DEPTH, num_ranked=4)
    for token in text(20_000):
        visits.clear()
        tree.append(token)
        assert len(visits) <= DEPTH
        assert len(tree.suffix_matches()) <= DEPTH
    assert all(_offered(tree, match.cursor) <= 4 for match in tree.suffix_matches())


def _offered(tree: SuffixTree, cursor: Cursor) -> int:
    following: Sequence[object] = tree.continuations(cursor)
    return len(following)
