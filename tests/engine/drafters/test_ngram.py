"""Prompt lookup: cases.md B28 as it stands, the rules in the docstring, and a quadratic search as
the judge.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.ngram import NgramDrafter
from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.types import Sampling, SlotView, SpecConfig
from tests.support.fakes import FakeTarget


def drafter(eos: tuple[int, ...] = (), **fields: object) -> NgramDrafter:
    config = SpecConfig(drafter="ngram", **fields)  # type: ignore[arg-type]
    target = FakeTarget(vocab_size=64, eos_token_ids=eos)
    cache = target.new_cache(num_slots=2, capacity=8)
    return NgramDrafter(config, DrafterContext(target=target, cache=cache))


def propose(
    one: NgramDrafter, tokens: Sequence[int], budget: int = 99, **sampling: object
) -> tuple[int, ...]:
    view = SlotView(0, tokens, 1, Sampling(**sampling), budget)  # type: ignore[arg-type]
    (tree,) = one.propose([view])
    assert tree.is_chain
    return tree.tokens


def test_b28_continues_after_the_match() -> None:
    assert propose(drafter(block_size=3), [5, 6, 7, 8, 9, 10, 11, 7, 8]) == (9, 10, 11)


@pytest.mark.parametrize(("eos", "expected"), [((), (9, 10, 11)), ((10,), (9, 10))])
def test_b28_eos_inside_the_proposal_ends_it(
    eos: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert propose(drafter(eos, block_size=3), [5, 6, 7, 8, 9, 10, 11, 7, 8]) == expected


def test_b28_eos_lists_stop_tokens_and_ignore_eos() -> None:
    tokens = [5, 6, 7, 8, 9, 10, 11, 7, 8]
    assert propose(drafter((50, 9), block_size=3), tokens) == (9,)
    assert propose(drafter(block_size=3), tokens, stop_token_ids=(10,)) == (9, 10)
    assert propose(drafter((10,), block_size=3), tokens, ignore_eos=True) == (9, 10, 11)


REPEATED = [1, 2, 3, 4, 7, 3, 8, 1, 2, 3]


def test_b28_longest_match_first() -> None:
    assert propose(drafter(match_max=3), REPEATED)[0] == 4


def test_b28_no_match_of_the_lengths_asked_for() -> None:
    assert propose(drafter(match_min=4, match_max=4), REPEATED) == ()


def test_b28_unigram_takes_the_latest_occurrence() -> None:
    assert propose(drafter(match_max=1), REPEATED)[0] == 8


def test_b28_bounds_crossed_are_a_configuration_error() -> None:
    with pytest.raises(EngineInputError, match="match_min 5 is above match_max 3"):
        drafter(match_min=5, match_max=3)


def test_b28_nothing_from_one_token_or_from_the_tail_itself() -> None:
    assert propose(drafter(), [7]) == ()
    assert propose(drafter(), [4, 5, 6, 7]) == ()


def test_a_near_match_goes_on_with_what_it_copied() -> None:
    assert propose(drafter(block_size=5), [9, 1, 2, 1, 2]) == (1, 2, 1, 2, 1)
    assert propose(drafter(block_size=3), [4, 4]) == (4, 4, 4)


def test_budget_and_block_size_limit_the_chain() -> None:
    tokens = [5, 6, 7, 8, 9, 10, 11, 7, 8]
    assert propose(drafter(block_size=8), tokens, budget=2) == (9, 10)
    assert propose(drafter(block_size=8), tokens, budget=0) == ()


def searched(tokens: list[int], shortest: int, longest: int, count: int) -> tuple[int, ...]:
    """The same rule by looking at every position."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                known = list(tokens)
                for source in range(end, end + count):
                    known.append(known[source])
                return tuple(known[len(tokens) :])
    return ()


@pytest.mark.parametrize("seed", range(5))
def test_incremental_index_equals_a_search(seed: int) -> None:
    draw = random.Random(seed)
    one = drafter(match_min=2, match_max=4, block_size=5)
    tokens = [draw.randrange(4) for _ in range(draw.randrange(1, 6))]
    hits = 0
    for _ in range(60):
        expected = searched(tokens, 2, 4, 5)
        hits += bool(expected)
        assert propose(one, tokens) == expected
        tokens += [draw.randrange(4) for _ in range(draw.randrange(1, 4))]
    assert hits > 10


def test_trees_and_nonsense_lengths_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="ngram does not draw static trees; use chain"):
        drafter(tree="static")
    for name in ("match_min", "match_max", "block_size"):
        with pytest.raises(EngineInputError, match=f"{name} is 0; give a whole number from 1"):
            drafter(**{name: 0})
