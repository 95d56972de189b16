"""Suffix decoding: the lazy tree against plain counting, and the drafts that come of it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.suffix import SuffixDrafter
from draftsmith.engine.drafters.suffix_tree import BOUNDARY, SuffixTree
from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Sampling, SlotView, SpecConfig
from tests.support.fakes import FakeTarget


def followers(text: Sequence[int], path: tuple[int, ...]) -> dict[int, int]:
    """How often each token followed ``path`` in ``text``."""
    counts: dict[int, int] = {}
    for start in range(len(text) - len(path)):
        if tuple(text[start : start + len(path)]) == path and BOUNDARY not in path:
            following = text[start + len(path)]
            if following != BOUNDARY:
                counts[following] = counts.get(following, 0) + 1
    return counts


def occurrences(text: Sequence[int], path: tuple[int, ...]) -> int:
    return sum(tuple(text[i : i + len(path)]) == path for i in range(len(text) - len(path) + 1))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("alphabet", [1, 2, 4])
def test_tree_counts_what_a_scan_of_the_text_counts(seed: int, alphabet: int) -> None:
    depth = 5
    draw = random.Random(100 * alphabet + seed)
    tree = SuffixTree(max_depth=depth, num_ranked=alphabet)
    text: list[int] = []
    for _ in range(40):
        text.append(draw.randrange(alphabet))
        tree.append(text[-1])
        matches = tree.suffix_matches()
        repeated = [
            length
            for length in range(1, min(depth, len(text)) + 1)
            if occurrences(text, tuple(text[-length:])) > 1
        ]
        assert [match.length for match in matches] == repeated
        for match in matches:
            path = tuple(text[-match.length :])
            check(tree, text, path, match.cursor, depth)


def check(tree, text, path, cursor, depth) -> None:  # type: ignore[no-untyped-def]
    """Everything below ``path`` down to the depth cap agrees with the scan."""
    if len(path) >= depth:
        return
    counts = followers(text, path)
    found = tree.continuations(cursor)
    total = sum(counts.values())
    assert {token: share for token, share, _ in found} == {
        token: count / total for token, count in counts.items()
    }
    shares = [share for _, share, _ in found]
    assert shares == sorted(shares, reverse=True)
    for token, _, child in found:
        check(tree, text, (*path, token), child, depth)


@pytest.mark.parametrize("seed", range(4))
def test_following_a_query_through_a_store_equals_a_scan(seed: int) -> None:
    draw = random.Random(seed)
    store = SuffixTree(max_depth=5, num_ranked=3)
    text: list[int] = []
    for _ in range(4):
        for _ in range(12):
            text.append(draw.randrange(3))
            store.append(text[-1])
        text.append(BOUNDARY)
        store.append(BOUNDARY)
    query: list[int] = []
    matches = []  # type: ignore[var-annotated]
    for _ in range(50):
        query.append(draw.randrange(3))
        matches = store.follow(matches, query[-1])
        expected = [
            length
            for length in range(1, min(5, len(query)) + 1)
            if occurrences(text, tuple(query[-length:]))
        ]
        assert [match.length for match in matches] == expected
        for match in matches:
            check(store, text, tuple(query[-match.length :]), match.cursor, 5)


def test_only_the_best_children_are_ranked_and_recent_ones_lead_at_equal_counts() -> None:
    tree = SuffixTree(max_depth=3, num_ranked=2)
    for token in (1, 5, 1, 6, 1, 7, 1, 5, 1, 7, 1, 5, 1):
        tree.append(token)
    (match, *_) = tree.suffix_matches()
    assert [token for token, _, _ in tree.continuations(match.cursor)] == [5, 7]
    tree = SuffixTree(max_depth=3, num_ranked=1)
    for token in (1, 5, 1, 6, 1):
        tree.append(token)
    assert tree.continuations(tree.suffix_matches()[0].cursor)[0][0] == 6


def drafter(
    store: tuple[tuple[int, ...], ...] = (), eos: tuple[int, ...] = (), **fields: object
) -> SuffixDrafter:
    values: dict[str, object] = {"match_max": 24, "block_size": 8, **fields}
    config = SpecConfig(drafter="suffix", **values)  # type: ignore[arg-type]
    target = FakeTarget(vocab_size=64, eos_token_ids=eos)
    cache = target.new_cache(num_slots=2, capacity=8)
    return SuffixDrafter(config, DrafterContext(target=target, cache=cache, suffix_store=store))


def propose(one: SuffixDrafter, tokens: Sequence[int], budget: int = 99) -> DraftTree:
    return one.propose([SlotView(0, tokens, 1, Sampling(), budget)])[0]


def test_draft_length_is_the_factor_times_the_match() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert propose(drafter(), tokens).tokens == (4, 5, 6)
    assert propose(drafter(spec_factor=2.0), tokens).tokens == (4, 5, 6, 7, 8, 9)
    assert propose(drafter(spec_factor=2.0, block_size=4), tokens).tokens == (4, 5, 6, 7)
    assert propose(drafter(spec_factor=2.0), tokens, budget=2).tokens == (4, 5)
    assert propose(drafter(spec_factor=0.3), tokens).tokens == ()


def test_frequency_beats_recency() -> None:
    tokens = [1, 2, 9, 1, 2, 9, 1, 2, 8, 1, 2]
    assert propose(drafter(), tokens).tokens[0] == 9


def test_a_longer_match_wins_over_a_more_frequent_shorter_one() -> None:
    tokens = [7, 1, 2, 5, 0, 1, 3, 0, 1, 3, 0, 1, 3, 7, 1]
    assert propose(drafter(), tokens).tokens[0] == 2


def test_match_min_and_the_probability_floor_withhold_drafts() -> None:
    tokens = [1, 5, 1, 6, 1, 7, 1]
    assert propose(drafter(min_token_prob=0.3), tokens).tokens == (7,)
    assert propose(drafter(min_token_prob=0.4), tokens).tokens == ()
    assert propose(drafter(match_min=2), tokens).tokens == ()


def test_dynamic_tree_branches_by_count() -> None:
    tokens = [1, 2, 8, 3, 0, 1, 2, 9, 4, 5, 1, 2, 8, 3, 6, 1, 2]
    tree = propose(drafter(tree="dynamic", tree_top_k=3, tree_budget=8, spec_factor=2.0), tokens)
    roots = [tree.tokens[i] for i in tree.children(-1)]
    assert roots == [8, 9]
    assert tree.tokens[tree.children(0)[0]] == 3
    assert len(tree) == 4


def test_end_tokens_end_the_draft() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert propose(drafter(eos=(5,)), tokens).tokens == (4, 5)


def test_the_store_helps_where_the_request_does_not_and_is_never_changed() -> None:
    store = ((1, 2, 3, 4, 5), (1, 2, 3, 4, 6))
    one = drafter(store)
    assert propose(one, [9, 1, 2, 3]).tokens[:1] == (4,)
    one.reset(0)
    assert propose(one, [5]).tokens == ()  # a text of the store ends there: no step into the next
    one.reset(0)
    assert propose(one, [9, 1, 2, 3]).tokens == propose(drafter(store), [9, 1, 2, 3]).tokens
    assert propose(drafter(), [9, 1, 2, 3]).tokens == ()


def test_the_request_wins_over_the_store_at_equal_scores() -> None:
    assert propose(drafter(((1, 2, 7),)), [1, 2, 8, 1, 2]).tokens[0] == 8


def test_incremental_and_fresh_drafts_agree() -> None:
    draw = random.Random(5)
    one = drafter(match_max=6, tree="dynamic", spec_factor=3.0)
    tokens = [draw.randrange(3)]
    for _ in range(40):
        fresh = drafter(match_max=6, tree="dynamic", spec_factor=3.0)
        assert propose(one, tokens) == propose(fresh, tokens)
        tokens += [draw.randrange(3) for _ in range(draw.randrange(1, 4))]


def test_nonsense_is_refused() -> None:
    with pytest.raises(EngineInputError, match="match_min 4 leaves no room under match_max 4"):
        drafter(match_min=4, match_max=4)
    with pytest.raises(EngineInputError, match="min_token_prob is 1.5"):
        drafter(min_token_prob=1.5)
    with pytest.raises(EngineInputError, match="spec_factor is 0"):
        drafter(spec_factor=0.0)
    with pytest.raises(UnsupportedError, match="use chain or dynamic"):
        drafter(tree="static")
