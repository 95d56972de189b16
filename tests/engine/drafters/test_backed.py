"""Drafters of matches backed by recycling: what is filled up, by what, and what is learned."""

from __future__ import annotations

import pytest
import torch

from draftsmith.engine.drafters.drafter import Drafter, DrafterContext
from draftsmith.engine.drafters.registry import make_drafter
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, Sampling, SlotView, SpecConfig
from tests.support.fakes import FakeTarget

VOCAB = 32


def drafter(eos: tuple[int, ...] = (), **fields: object) -> Drafter:
    config = SpecConfig(**{"drafter": "ngram", "match_min": 2, **fields})  # type: ignore[arg-type]
    target = FakeTarget(vocab_size=VOCAB, eos_token_ids=eos)
    cache = target.new_cache(num_slots=2, capacity=8)
    made = make_drafter(config, DrafterContext(target=target, cache=cache))
    assert made is not None
    return made


def propose(one: Drafter, tokens: list[int], budget: int = 99, slot: int = 0) -> DraftTree:
    return one.propose([SlotView(slot, tokens, len(tokens), Sampling(), budget)])[0]


def logits_of(*best: int) -> torch.Tensor:
    logits = torch.zeros(len(best), VOCAB)
    logits[torch.arange(len(best)), torch.tensor(best)] = 1.0
    return logits


def test_without_a_match_recycling_drafts() -> None:
    tokens = [1, 2, 9, 3, 2]  # 2 was followed by 9, 9 by 3, 3 by 2; no two tokens repeat
    assert propose(drafter(), tokens).tokens == ()
    assert propose(drafter(fallback_size=2), tokens).tokens == (9, 3)
    assert propose(drafter(fallback_size=2), tokens, budget=1).tokens == (9,)


def test_a_match_comes_first_and_only_a_short_one_is_filled_up() -> None:
    tokens = [1, 2, 3, 1, 2]
    long = propose(drafter(fallback_size=2, block_size=3), tokens)
    assert long.tokens == propose(drafter(block_size=3), tokens).tokens == (3, 1, 2)
    short = propose(drafter(fallback_size=3, block_size=1), tokens)
    assert short.tokens == (3, 1, 2) and short.is_chain


def test_a_draft_ends_at_an_end_token() -> None:
    tokens = [1, 2, 9, 3, 2]
    assert propose(drafter((9,), fallback_size=3), tokens).tokens == (9,)


def test_rows_of_either_kind_of_draft_are_learned_from() -> None:
    one = drafter(fallback_size=1, block_size=2)
    assert propose(one, [1, 2, 3, 1, 2]).tokens == (3, 1)
    one.observe([Commit(0, (7,), (), False, logits_of(7, 8, 5))])
    assert propose(one, [1, 2, 3, 1, 2, 7]).tokens == ()  # nothing has followed 7
    one.observe([Commit(0, (3,), (), False, logits_of(3))])
    assert propose(one, [1, 2, 3, 1, 2, 7, 3]).tokens == (8,)  # row 3 of the first draft said so


def test_a_step_without_a_draft_is_not_taken_for_the_last_one() -> None:
    one = drafter(fallback_size=1, block_size=2)
    propose(one, [1, 2, 3, 1, 2])
    one.observe([Commit(0, (7,), (), False, logits_of(7, 8, 5))])
    one.observe([Commit(0, (4,), (), False, logits_of(4))])  # its budget was 0: nobody asked
    assert propose(one, [1, 2, 3, 1, 2, 7, 4, 2]).tokens == (7,)


def test_finished_requests_and_reset_slots_are_forgotten() -> None:
    one = drafter(fallback_size=1)
    tokens = [1, 2, 9, 3, 2]
    propose(one, tokens)
    one.observe([Commit(0, (5,), (), False, logits_of(5, 6))])
    assert propose(one, tokens).tokens == (5,)
    one.reset(0)
    assert propose(one, tokens).tokens == (9,)
    one.observe([Commit(0, (5,), (), True, logits_of(5, 6))])
    assert propose(one, tokens).tokens == (9,)


def test_a_size_out_of_range_is_refused() -> None:
    for size in (-1, 9):
        with pytest.raises(EngineInputError, match=rf"fallback_size is {size}; .* from 0 to 8"):
            drafter(fallback_size=size)
