"""Compaction of accepted rows: overlap, bystanders, exact copies."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.kernels.gather_cache import gather_cache


def _cache(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    numbers = torch.arange(2 * 3 * 2 * 11 * 5, dtype=torch.float32)
    return numbers.view(2, 3, 2, 11, 5).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "rows", [[0, 1, 2], [0, 2, 4], [1, 2, 3, 4], [4], [0, 3, 4, 6], []], ids=str
)
def test_rows_move_and_bystanders_stay(rows: list[int], dtype: torch.dtype) -> None:
    k, v = _cache(dtype), -_cache(dtype)
    expected_k, expected_v = k.clone(), v.clone()
    for index, row in enumerate(rows):
        expected_k[:, 1, :, 4 + index] = k[:, 1, :, 4 + row]
        expected_v[:, 1, :, 4 + index] = v[:, 1, :, 4 + row]
    gather_cache(k, v, 1, 4, rows)
    assert torch.equal(k, expected_k)
    assert torch.equal(v, expected_v)


@given(st.lists(st.integers(0, 6), max_size=7))
@settings(max_examples=50, deadline=None)
def test_sources_are_read_before_any_row_is_written(rows: list[int]) -> None:
    """Any order, repeats included: each target row holds the old content of its source."""
    k, v = _cache(), -_cache()
    before = k.clone()
    gather_cache(k, v, 2, 3, rows)
    for index, row in enumerate(rows):
        assert torch.equal(k[:, 2, :, 3 + index], before[:, 2, :, 3 + row])
    assert torch.equal(v, -k)


def test_rejected_rows_of_nan_do_not_spread() -> None:
    k, v = _cache(), _cache()
    k[:, 0, :, [5, 7]] = torch.nan
    v[:, 0, :, [5, 7]] = torch.nan
    gather_cache(k, v, 0, 4, [0, 2, 4])
    assert k[:, 0, :, :7].isfinite().all()
    assert v[:, 0, :, :7].isfinite().all()
