"""Static templates: branching factors, and the dynamic programme against every small tree."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.trees.static import (
    TreeProgramme,
    TreeTemplate,
    chain_template,
    expected_tokens,
    for_hardware,
    from_acceptance,
    from_branching,
)

ACCEPTANCES = [
    (0.6, 0.2, 0.1),
    (0.9, 0.05),
    (0.34, 0.33, 0.33),
    (0.1, 0.5, 0.2),  # ranks that are not sorted
    (0.7,),
    (0.5, 0.0, 0.4),
]

Shape = tuple["Shape", ...]


@cache
def shapes(nodes: int, depth: int, ranks: int) -> tuple[Shape, ...]:
    """Every ordered tree of exactly ``nodes`` nodes under a root, by its children's shapes."""
    if nodes == 0:
        return ((),)
    if depth == 0 or ranks == 0:
        return ()

    def forests(left: int, places: int) -> Iterator[Shape]:
        if left == 0:
            yield ()
            return
        if places == 0:
            return
        for size in range(1, left + 1):
            for first in shapes(size - 1, depth - 1, ranks):
                for rest in forests(left - size, places - 1):
                    yield (first, *rest)

    return tuple(forests(nodes, ranks))


def value(shape: Shape, acceptance: tuple[float, ...]) -> float:
    return 1.0 + sum(
        acceptance[rank] * value(child, acceptance) for rank, child in enumerate(shape)
    )


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_programme_equals_brute_force_over_all_trees(
    acceptance: tuple[float, ...], depth: int
) -> None:
    programme = TreeProgramme(acceptance, budget=7, depth=depth)
    for nodes in range(8):
        every = [value(shape, acceptance) for shape in shapes(nodes, depth, len(acceptance))]
        best = max(every, default=float("-inf"))
        assert programme.value(nodes, depth) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("acceptance", ACCEPTANCES)
@pytest.mark.parametrize("budget", [1, 3, 6, 7])
def test_template_attains_the_best_value_within_budget_and_depth(
    acceptance: tuple[float, ...], budget: int
) -> None:
    template = from_acceptance(acceptance, budget=budget, depth=3)
    best = max(
        value(shape, acceptance)
        for nodes in range(budget + 1)
        for shape in shapes(nodes, 3, len(acceptance))
    )
    assert expected_tokens(template, acceptance) == pytest.approx(best, abs=1e-12)
    assert len(template) <= budget
    assert max(template.depths) <= 3


def test_only_rank_zero_useful_gives_a_chain() -> None:
    assert from_acceptance((0.8, 0.0), budget=6, depth=4) == chain_template(4)


def test_equal_ranks_and_depth_one_give_a_star() -> None:
    template = from_acceptance((0.25, 0.25, 0.25), budget=8, depth=1)
    assert template == TreeTemplate((-1, -1, -1), (0, 1, 2))


def test_branching_counts_and_breadth_first_order() -> None:
    template = from_branching((4, 2, 1))
    assert len(template) == 4 + 8 + 8
    assert template.depths == (1,) * 4 + (2,) * 8 + (3,) * 8
    assert template.parents[:6] == (-1, -1, -1, -1, 0, 0)
    assert template.ranks[:6] == (0, 1, 2, 3, 0, 1)
    assert template.num_ranks == 4
    assert template.children[0] == (0, 1, 2, 3)
    assert template.children[1] == (4, 5)
    assert from_branching((1, 1, 1)) == chain_template(3)


def test_every_prefix_of_a_template_is_a_template() -> None:
    template = from_acceptance((0.5, 0.3, 0.1), budget=20, depth=5)
    for size in range(len(template) + 1):
        prefix = TreeTemplate(template.parents[:size], template.ranks[:size])
        assert prefix.depths == template.depths[:size]


def test_hardware_choice_follows_the_measured_times() -> None:
    acceptance = (0.6, 0.2, 0.1)
    flat = dict.fromkeys((0, 2, 4, 8, 16), 1.0)
    assert len(for_hardware(acceptance, flat, draft_level_s=0.0, depth=6).template) > 8
    steep = {0: 1.0, 2: 2.0, 4: 3.5, 8: 9.0}
    assert len(for_hardware(acceptance, steep, draft_level_s=0.0, depth=6).template) == 0
    step = {0: 1.0, 4: 1.05, 8: 4.0}
    choice = for_hardware(acceptance, step, draft_level_s=0.01, depth=6)
    assert 1 <= len(choice.template) <= 4
    slow_levels = for_hardware(acceptance, flat, draft_level_s=5.0, depth=6)
    assert max(slow_levels.template.depths, default=0) <= 1


def test_hardware_choice_equals_a_scan_over_all_trees() -> None:
    acceptance = (0.55, 0.25, 0.1)
    verify_s = {0: 1.0, 1: 1.02, 3: 1.1, 5: 1.3, 7: 1.31}
    best = 0.0
    for limit, seconds in verify_s.items():
        for levels in range(5):
            for nodes in range(limit + 1):
                for shape in shapes(nodes, levels, 3):
                    best = max(best, value(shape, acceptance) / (seconds + 0.08 * height(shape)))
    choice = for_hardware(acceptance, verify_s, draft_level_s=0.08, depth=4)
    assert choice.tokens_per_s == pytest.approx(best, abs=1e-12)


def height(shape: Shape) -> int:
    return max((1 + height(child) for child in shape), default=0)


@pytest.mark.parametrize(
    ("parents", "ranks", "message"),
    [
        ((-1, 1), (0, 0), "parents precede"),
        ((-1, 0, -1), (0, 0, 1), "breadth-first"),
        ((-1, -1), (0, 0), "repeats a rank"),
        ((-1,), (0, 1), "1 parents but 2 ranks"),
        ((-1,), (-1,), "ranks start at 0"),
    ],
)
def test_malformed_templates_are_refused(
    parents: tuple[int, ...], ranks: tuple[int, ...], message: str
) -> None:
    with pytest.raises(EngineInputError, match=message):
        TreeTemplate(parents, ranks)


def test_impossible_programmes_and_branchings_are_refused() -> None:
    for branching in ((), (2, 0), (-1,)):
        with pytest.raises(EngineInputError, match="at least one factor"):
            from_branching(branching)
    with pytest.raises(EngineInputError, match="at most 1024"):
        from_branching((16, 16, 16))
    with pytest.raises(EngineInputError, match=r"budget 0 .* 1\.\.1024"):
        from_acceptance((0.5,), budget=0, depth=2)
    with pytest.raises(EngineInputError, match="depth 0"):
        from_acceptance((0.5,), budget=2, depth=0)
    with pytest.raises(EngineInputError, match="sums to 1.2"):
        from_acceptance((0.7, 0.5), budget=2, depth=2)
    with pytest.raises(EngineInputError, match="at least one rate"):
        from_acceptance((), budget=2, depth=2)
    with pytest.raises(EngineInputError, match="positive seconds"):
        for_hardware((0.5,), {1: 0.0}, draft_level_s=0.0, depth=2)
    with pytest.raises(EngineInputError, match="negative"):
        for_hardware((0.5,), {1: 1.0}, draft_level_s=-1.0, depth=2)
