"""Token recycling: what the table learns, from where, and what is drawn from it."""

from __future__ import annotations

import pytest
import torch

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.recycle import RecycleDrafter
from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, Sampling, SlotView, SpecConfig
from tests.support.fakes import FakeTarget

VOCAB = 32


def drafter(eos: tuple[int, ...] = (), **fields: object) -> RecycleDrafter:
    config = SpecConfig(drafter="recycle", **fields)  # type: ignore[arg-type]
    target = FakeTarget(vocab_size=VOCAB, eos_token_ids=eos)
    cache = target.new_cache(num_slots=2, capacity=8)
    return RecycleDrafter(config, DrafterContext(target=target, cache=cache))


def propose(one: RecycleDrafter, tokens: list[int], slot: int = 0, budget: int = 99) -> DraftTree:
    return one.propose([SlotView(slot, tokens, len(tokens), Sampling(), budget)])[0]


def logits_of(*rows: tuple[int, ...]) -> torch.Tensor:
    """Rows whose best tokens are the ones named, best first."""
    logits = torch.zeros(len(rows), VOCAB)
    for row, best in enumerate(rows):
        for rank, token in enumerate(best):
            logits[row, token] = 10.0 - rank
    return logits


def test_prompt_bigrams_seed_the_table_latest_first() -> None:
    one = drafter(tree="static", branching=(2,), recycle_k=2)
    assert propose(one, [5, 7, 5, 8, 5, 9, 5]).tokens == (9, 8)


def test_an_unknown_root_drafts_nothing() -> None:
    assert propose(drafter(), [5, 7, 9]).tokens == ()


def test_every_verified_row_is_learned_accepted_or_not() -> None:
    one = drafter(tree="static", branching=(2, 1), recycle_k=2)
    tree = propose(one, [1, 2, 1, 3, 1])
    assert tree.tokens == (3, 2, 1, 1)  # under 1: 3 and 2; under each of them: 1
    rows = logits_of((4, 5), (6, 7), (8, 9), (10, 11), (12, 13))
    one.observe([Commit(0, (4,), (), False, rows)])
    after_four = propose(one, [1, 2, 1, 3, 1, 4])
    assert after_four.tokens == ()  # nothing has followed 4 yet
    one.observe([Commit(0, (3,), (), False, logits_of((2, 3)))])
    # Node 3 (rejected) was followed by 6, 7; its sibling 2 by 8, 9; 4 by 2, 3.
    assert propose(one, [1, 2, 1, 3, 1, 4, 3]).tokens == (6, 7)
    one.observe([Commit(0, (4,), (), False, logits_of((0,), (0,), (0,)))])
    assert propose(one, [1, 2, 1, 3, 1, 4, 3, 4]).tokens == (2, 3, 8, 0)


def test_reset_and_finish_forget_and_slots_do_not_share() -> None:
    one = drafter()
    propose(one, [1, 2, 1], slot=0)
    one.observe([Commit(0, (9,), (), False, logits_of((9,), (9,), (9,), (9,), (9,)))])
    assert propose(one, [1], slot=1).tokens == ()
    assert propose(one, [1, 2, 1, 9, 1], slot=0).tokens[0] == 9
    one.reset(0)
    assert propose(one, [1, 2, 1], slot=0).tokens[0] == 2
    one.observe([Commit(0, (9,), (), True, logits_of((9,)))])
    assert propose(one, [1], slot=0).tokens == ()


def test_budget_and_end_tokens_prune_the_template() -> None:
    prompt = [1, 2, 1, 3, 1]
    one = drafter(tree="static", branching=(2, 2), recycle_k=2)
    assert propose(one, prompt, budget=3).tokens == (3, 2, 1)
    stopped = drafter((3,), tree="static", branching=(2, 2), recycle_k=2)
    tree = propose(stopped, prompt)
    assert tree.children(0) == ()  # nothing below the end token 3
    assert [tree.tokens[i] for i in tree.children(1)] == [1]


def test_nonsense_is_refused() -> None:
    with pytest.raises(EngineInputError, match=r"recycle_k is 33; .* from 1 to 32"):
        drafter(recycle_k=33)
    with pytest.raises(EngineInputError, match="needs 5 candidates a node, .* keeps 4"):
        drafter(recycle_k=4, tree="static", branching=(5,))
    with pytest.raises(UnsupportedError, match="dynamic trees; use chain or static"):
        drafter(tree="dynamic")
