"""Requests cut for measuring."""

from __future__ import annotations

import pytest

from draftsmith.engine.units import in_pieces, two_units, unit_size


@pytest.mark.parametrize(("concurrency", "one", "two"), [(1, 1, 2), (2, 4, 6), (8, 16, 24)])
def test_two_units_are_the_fewest_requests_that_are_cut_in_two(
    concurrency: int, one: int, two: int
) -> None:
    assert (unit_size(concurrency), two_units(concurrency)) == (one, two)
    assert len(in_pieces(range(two), one, concurrency)) == 2
    assert len(in_pieces(range(two - 1), one, concurrency)) == 1


@pytest.mark.parametrize(
    ("count", "size", "least", "sizes"),
    [
        (10, 4, 1, [4, 4, 2]),
        (10, 4, 3, [4, 6]),
        (3, 4, 4, [3]),
        (8, 4, 4, [4, 4]),
        (0, 4, 1, []),
    ],
)
def test_pieces_join_a_rest_that_would_run_under_another_load(
    count: int, size: int, least: int, sizes: list[int]
) -> None:
    pieces = in_pieces(range(count), size, least)
    assert [len(piece) for piece in pieces] == sizes
    assert [item for piece in pieces for item in piece] == list(range(count))
