"""The largest numbers of a row: against a stable sort, and what the reference promises."""

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.top_k import top_k

SHAPES = [(1, 1, 1), (3, 5, 5), (4, 31, 3), (2, 32, 1), (5, 1000, 8), (9, 49152, 8), (3, 300, 64)]


def numbers(rows: int, size: int, *, ties: bool = False) -> torch.Tensor:
    values = torch.randn(rows, size, generator=torch.Generator().manual_seed(size))
    return values.mul(2).round() if ties else values


def sorted_columns(values: torch.Tensor, count: int) -> torch.Tensor:
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_columns_are_those_of_a_stable_sort(
    shape: tuple[int, int, int], ties: bool, cpp: None, threads: None
) -> None:
    rows, size, count = shape
    values = numbers(rows, size, ties=ties)
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        assert torch.equal(top_k(values, count), sorted_columns(values, count))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reference_gives_the_same_numbers_and_the_first_column(
    shape: tuple[int, int, int], ties: bool
) -> None:
    rows, size, count = shape
    values = numbers(rows, size, ties=ties)
    with use_backend("reference"):
        found = top_k(values, count)
    wanted = sorted_columns(values, count)
    assert torch.equal(values.gather(1, found), values.gather(1, wanted))
    assert torch.equal(found[:, 0], wanted[:, 0])
    assert all(len(set(row)) == count for row in found.tolist())


@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_infinities_and_nan(backend: str, cpp: None) -> None:
    infinity = float("inf")
    values = torch.full((3, 70), -infinity)
    values[0, 50] = infinity
    values[1, [3, 60]] = torch.nan
    with use_backend(backend):  # type: ignore[arg-type]
        assert top_k(values, 1).flatten().tolist() == [50, 3, 0]
        assert top_k(values, 2)[1].sort().values.tolist() == [3, 60]


def test_rows_that_are_not_dense(cpp: None) -> None:
    values = numbers(6, 100)
    assert torch.equal(top_k(values[:, 7:90], 4), sorted_columns(values[:, 7:90], 4))
    assert torch.equal(top_k(values.T, 2), sorted_columns(values.T, 2))
    assert top_k(values[:0], 3).shape == (0, 3)


@pytest.mark.parametrize(
    ("values", "count", "word"),
    [
        (torch.zeros(2, 3), 0, "count 0 is outside 1..3"),
        (torch.zeros(2, 3), 4, "count 4"),
        (torch.zeros(3), 1, r"\[N, V\]"),
        (torch.zeros(2, 3, dtype=torch.float64), 1, "float64"),
    ],
)
def test_bad_input_is_refused(values: torch.Tensor, count: int, word: str) -> None:
    with pytest.raises(KernelInputError, match=word):
        top_k(values, count)
