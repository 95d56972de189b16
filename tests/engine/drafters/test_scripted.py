"""The scripted drafter keeps to its script, in chains and trees."""

from __future__ import annotations

import pytest

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.scripted import ScriptedDrafter
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Sampling, SlotView, SpecConfig
from tests.support.fakes import FakeTarget

PROMPT = (3, 4)
REFERENCE = tuple(range(10, 30))


def drafter(vocab_size: int = 64, known: bool = True, **fields: object) -> ScriptedDrafter:
    config = SpecConfig(drafter="scripted", **fields)  # type: ignore[arg-type]
    target = FakeTarget(vocab_size=vocab_size)
    cache = target.new_cache(num_slots=2, capacity=8)
    references = {PROMPT: REFERENCE} if known else None
    context = DrafterContext(target=target, cache=cache, references=references)
    return ScriptedDrafter(config, context)


def propose(one: ScriptedDrafter, done: int, seed: int = 0, budget: int = 99) -> DraftTree:
    tokens = [*PROMPT, *REFERENCE[:done]]
    return one.propose([SlotView(0, tokens, len(PROMPT), Sampling(seed=seed), budget)])[0]


def test_chains_follow_the_script() -> None:
    assert propose(drafter(), 2).tokens == (12, 13, 14, 15)
    assert propose(drafter(script="wrong"), 2).tokens == (13, 14, 15, 16)
    mixed = drafter(script="mixed", script_right=2)
    assert propose(mixed, 2).tokens == (12, 13, 15, 15)  # right, right, wrong, right
    assert propose(drafter(script="mixed", script_right=4), 2).tokens == (12, 13, 14, 15)
    assert propose(drafter(), 2, budget=3).tokens == (12, 13, 14)


def test_past_the_reference_nothing_is_right() -> None:
    tree = propose(drafter(), 18)
    assert tree.tokens[:2] == (28, 29)
    assert tree.tokens[2:] == (30, 31)


def test_wrong_wraps_at_the_vocabulary() -> None:
    assert propose(drafter(vocab_size=30, script="wrong"), 19, budget=1).tokens == (0,)


def test_random_is_right_at_the_rate_asked_for_and_repeats() -> None:
    one = drafter(script="random", accept_p=0.3, block_size=1)
    outcomes = [
        propose(one, done, seed=seed).tokens[0] == REFERENCE[done]
        for seed in range(100)
        for done in range(20)
    ]
    assert 0.26 < sum(outcomes) / len(outcomes) < 0.34
    assert propose(one, 3, seed=7) == propose(one, 3, seed=7)
    assert propose(drafter(script="random", accept_p=1.0), 0).tokens == REFERENCE[:4]
    assert propose(drafter(script="random", accept_p=0.0), 0).tokens[0] == 11


def test_static_trees_hide_the_right_token_among_wrong_siblings() -> None:
    one = drafter(tree="static", branching=(3, 2))
    places = set()
    for done in range(12):
        tree = propose(one, done)
        roots = [tree.tokens[i] for i in tree.children(-1)]
        assert roots.count(REFERENCE[done]) == 1
        places.add(roots.index(REFERENCE[done]))
        for node in tree.children(-1):
            below = [tree.tokens[i] for i in tree.children(node)]
            assert below.count(REFERENCE[done + 1]) == 1
    assert places == {0, 1, 2}
    wrong = propose(drafter(tree="static", branching=(3, 2), script="wrong"), 0)
    assert REFERENCE[0] not in [wrong.tokens[i] for i in wrong.children(-1)]


def test_programme_trees_of_uneven_width_keep_the_right_token_in_reach() -> None:
    one = drafter(tree="static", tree_budget=12, block_size=4)
    for done in range(10):
        tree = propose(one, done)
        path = -1
        for depth in range(max(tree.depths())):
            below = {tree.tokens[i]: i for i in tree.children(path)}
            if not below:
                break
            assert REFERENCE[done + depth] in below
            path = below[REFERENCE[done + depth]]


def test_missing_references_and_nonsense_are_refused() -> None:
    with pytest.raises(EngineInputError, match="was given none; run stock first"):
        drafter(known=False)
    with pytest.raises(EngineInputError, match="no reference for a prompt of 1 tokens"):
        drafter().propose([SlotView(0, [9], 1, Sampling(), 4)])
    with pytest.raises(EngineInputError, match="accept_p is 1.5"):
        drafter(accept_p=1.5)
    with pytest.raises(EngineInputError, match="script_right is 5"):
        drafter(script="mixed", script_right=5)
    with pytest.raises(EngineInputError, match="script is 'lazy'"):
        drafter(script="lazy")
    with pytest.raises(EngineInputError, match="needs 5 tokens a node, the vocabulary has 4"):
        drafter(vocab_size=4, tree="static", branching=(5,))
