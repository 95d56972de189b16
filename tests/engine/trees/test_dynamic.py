"""Best-first trees against every connected tree of small random candidate spaces."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from draftsmith.engine.trees.dynamic import Candidate, best_first
from draftsmith.engine.trees.tree import DraftTree

Path = tuple[int, ...]


def space(seed: int, width: int) -> dict[Path, list[float]]:
    """Random child probabilities for every path of up to three tokens."""
    draw = random.Random(seed)
    table: dict[Path, list[float]] = {}

    def fill(path: Path) -> None:
        if len(path) == 3:
            return
        weights = [draw.random() for _ in range(width)]
        total = sum(weights) + draw.random()
        table[path] = sorted((weight / total for weight in weights), reverse=True)
        for token in range(width):
            fill((*path, token))

    fill(())
    return table


def children(table: dict[Path, list[float]], path: Path) -> Sequence[Candidate[Path]]:
    return [
        Candidate(token, prob, (*path, token)) for token, prob in enumerate(table.get(path, []))
    ]


def best_sum(table: dict[Path, list[float]], budget: int, depth: int) -> float:
    """Largest sum of scores over all connected trees, by exhaustive growth."""
    seen: set[frozenset[Path]] = {frozenset()}
    level = {frozenset[Path]()}
    score = {(): 1.0}
    best = 0.0
    for _ in range(budget):
        grown: set[frozenset[Path]] = set()
        for tree in level:
            for parent in (*tree, ()):
                if len(parent) == depth:
                    continue
                for token, prob in enumerate(table.get(parent, [])):
                    child = (*parent, token)
                    score[child] = score[parent] * prob
                    larger = tree | {child}
                    if larger not in seen:
                        seen.add(larger)
                        grown.add(larger)
        best = max([best, *(sum(score[path] for path in tree) for tree in grown)])
        level = grown
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("budget", "depth"), [(1, 3), (3, 1), (4, 3), (5, 2)])
def test_best_first_attains_the_largest_sum(seed: int, budget: int, depth: int) -> None:
    table = space(seed, width=2)
    tree = best_first((), lambda path: children(table, path), budget=budget, depth=depth)
    assert sum(tree.scores) == pytest.approx(best_sum(table, budget, depth), abs=1e-12)
    drafted = DraftTree(tree.tokens, tree.parents)  # connected, distinct siblings
    assert max(drafted.depths()) <= depth


@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_is_the_tree_of_the_smaller_budget(seed: int) -> None:
    table = space(seed, width=3)
    largest = best_first((), lambda path: children(table, path), budget=12, depth=3)
    for budget in range(13):
        tree = best_first((), lambda path: children(table, path), budget=budget, depth=3)
        assert tree.tokens == largest.tokens[:budget]
        assert tree.parents == largest.parents[:budget]
    assert list(largest.scores) == sorted(largest.scores, reverse=True)


def test_equal_scores_go_to_the_node_nearer_to_the_root() -> None:
    table: dict[Path, list[float]] = {
        (): [1.0, 0.0],
        (0,): [0.5, 0.5],
        (0, 0): [1.0],
        (0, 1): [1.0],
    }
    tree = best_first((), lambda path: children(table, path), budget=3, depth=3)
    assert tree.parents == (-1, 0, 0)
    assert tree.tokens == (0, 0, 1)


def test_scores_under_the_floor_and_zero_scores_are_left_out() -> None:
    table: dict[Path, list[float]] = {(): [0.5, 0.3, 0.0], (0,): [0.9, 0.1]}
    tree = best_first((), lambda path: children(table, path), budget=9, depth=3)
    assert len(tree.tokens) == 4
    floored = best_first((), lambda path: children(table, path), budget=9, depth=3, min_score=0.31)
    assert floored.tokens == (0, 0)
    assert floored.parents == (-1, 0)


def test_no_budget_or_no_depth_asks_nothing() -> None:
    def refuse(_: Path) -> Sequence[Candidate[Path]]:
        raise AssertionError("candidates asked")

    assert best_first((), refuse, budget=0, depth=3).tokens == ()
    assert best_first((), refuse, budget=3, depth=0).tokens == ()
