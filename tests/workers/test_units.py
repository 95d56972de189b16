from __future__ import annotations

import pytest

from draftsmith.workers.units import split_units, turn_order, warm_up_requests
from tests.support.measuring import make_requests


def test_one_prompt_a_unit_at_concurrency_one() -> None:
    units = split_units(make_requests(3), 1)
    assert [unit.request_ids for unit in units] == [("r0",), ("r1",), ("r2",)]
    assert [unit.category for unit in units] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("count", "sizes"), [(8, [4, 4]), (9, [4, 5]), (10, [4, 4, 2]), (3, [3]), (1, [1])]
)
def test_groups_of_twice_the_concurrency_and_no_group_below_it(
    count: int, sizes: list[int]
) -> None:
    units = split_units(make_requests(count), 2)
    assert [len(unit.requests) for unit in units] == sizes
    assert [i for unit in units for i in unit.request_ids] == [f"r{i}" for i in range(count)]


def test_category_of_a_group_is_the_common_one_or_mixed() -> None:
    (mixed,) = split_units(make_requests(4), 2)
    (common,) = split_units(make_requests(4, categories="a"), 2)
    assert (mixed.category, common.category) == ("mixed", "a")


def test_turns_alternate_and_rotate() -> None:
    assert [turn_order("AB", turn) for turn in range(3)] == [("A", "B"), ("B", "A"), ("A", "B")]
    firsts = [turn_order("ABC", turn)[0] for turn in range(6)]
    assert firsts == ["A", "B", "C", "A", "B", "C"]


def test_warm_up_cuts_the_output_only() -> None:
    (unit,) = split_units(make_requests(1, max_tokens=40), 1)
    (request,) = warm_up_requests(unit, 16)
    assert request.sampling.max_tokens == 16
    assert request.prompt_ids == unit.requests[0].prompt_ids
    (request,) = warm_up_requests(unit, 100)
    assert request.sampling.max_tokens == 40
