"""Compaction in Triton: overlap, ragged and empty sequences, tiles, bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.gather_cache import cost as gather_cost
from draftsmith.kernels.gather_cache import gather_cache, gather_cache_ragged
from draftsmith.kernels.gather_cache.reference import gather_cache_ragged_reference
from tests.support.traffic import count_traffic

SHAPE = (2, 4, 3, 40, 20)  # layers, slots, heads, capacity, head size

pytestmark = pytest.mark.usefixtures("triton")


def _caches(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    k = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype)
    return k, -k


def _int32(numbers: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_ragged_batch_is_that_of_the_reference(dtype: torch.dtype) -> None:
    """Sequences of different counts, one of them empty, in slots out of order; NaN elsewhere."""
    k, v = _caches(dtype)
    k[:, 1], v[:, 1] = torch.nan, torch.nan
    slots, starts, counts = _int32([2, 0, 3]), _int32([5, 0, 30]), _int32([4, 0, 2])
    rows = _int32([[0, 2, 3, 6], [1, 1, 1, 1], [3, 9, 0, 0]])
    wanted = k.clone(), v.clone()
    gather_cache_ragged_reference(*wanted, slots, starts, rows, counts)
    gather_cache_ragged(k, v, slots, starts, rows, counts)
    torch.testing.assert_close(k, wanted[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(v, wanted[1], rtol=0, atol=0, equal_nan=True)


@given(st.lists(st.integers(0, 9), max_size=10))
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_sources_are_read_before_any_row_is_written(rows: list[int]) -> None:
    k, v = _caches(torch.float32)
    before = k.clone()
    gather_cache(k, v, 2, 3, rows)
    for index, row in enumerate(rows):
        assert torch.equal(k[:, 2, :, 3 + index], before[:, 2, :, 3 + row])
    assert torch.equal(k[:, 2, :, 3 + len(rows) :], before[:, 2, :, 3 + len(rows) :])
    assert torch.equal(v, -k)


def test_more_rows_than_a_tile_has_columns_for() -> None:
    """1,024 rows leave a program 8 columns of the head."""
    k = torch.randn(1, 1, 1, 2000, 20, generator=torch.Generator().manual_seed(1))
    v, before = -k, k.clone()
    rows = [2 * row for row in range(900)]
    gather_cache(k, v, 0, 7, rows)
    assert torch.equal(k[0, 0, 0, 7:907], before[0, 0, 0, 7 : 7 + 1800 : 2])
    assert torch.equal(v, -k)


def test_bytes_and_launches_are_those_of_the_formula() -> None:
    k, v = _caches(torch.bfloat16)
    counts = [4, 0, 2]
    with count_traffic() as traffic:
        gather_cache_ragged(
            *(k, v, _int32([2, 0, 3]), _int32([5, 0, 3])),
            *(_int32([[0, 2, 3, 6], [1, 1, 1, 1], [3, 9, 0, 0]]), _int32(counts)),
        )
    assert traffic.cost == gather_cost(
        counts=counts, max_rows=4, num_layers=2, num_kv_heads=3, head_dim=20, element_size=2
    )
    assert traffic.launches.by_function == {"gather_kernel": 1}


def test_indices_that_do_not_fit_are_refused() -> None:
    k, v = _caches(torch.float32)
    one = _int32([0])
    with pytest.raises(KernelInputError, match="three \\[B\\] are needed"):
        gather_cache_ragged(k, v, one, one, one, one)
    with pytest.raises(KernelInputError, match="int32 on cpu is needed"):
        gather_cache_ragged(k, v, one, one, one[None].long(), one)
    with pytest.raises(KernelInputError, match="must be dense"):
        gather_cache_ragged(k[..., :8], v[..., :8], one, one, one[None], one)
