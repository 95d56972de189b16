"""The norm in Triton, with and without a residual: reference, stable rows, bytes."""

from __future__ import annotations

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.rms_norm import add_rms_norm, cost, rms_norm
from tests.support.traffic import count_traffic

pytestmark = pytest.mark.usefixtures("triton", "poisoned_empty")

TOLERANCES = {torch.float32: 2**-20, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def _inputs(num_rows: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(size)
    x, residual = torch.randn(2, num_rows, size, generator=generator).to(dtype)
    return x, residual, torch.randn(size, generator=generator)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (3, 576), (4, 129)])
def test_norms_are_those_of_the_reference(dtype: torch.dtype, num_rows: int, size: int) -> None:
    x, residual, weight = _inputs(num_rows, size, dtype)
    normed, added = rms_norm(x, weight, 1e-5), add_rms_norm(x, residual, weight, 1e-5)
    with use_backend("reference"):
        wanted, wanted_added = rms_norm(x, weight, 1e-5), add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(added.total, wanted_added.total)
    rtol = TOLERANCES[dtype]
    torch.testing.assert_close(normed, wanted, rtol=rtol, atol=1e-7)
    torch.testing.assert_close(added.normed, wanted_added.normed, rtol=rtol, atol=1e-7)


def test_rows_have_the_bits_they_have_alone() -> None:
    x, residual, weight = _inputs(6, 200, torch.bfloat16)
    x[2] = torch.nan
    together = add_rms_norm(x, residual, weight, 1e-6)
    for row in (0, 1, 5):
        one = slice(row, row + 1)
        alone = add_rms_norm(x[one], residual[one], weight, 1e-6)
        assert torch.equal(alone.normed[0], together.normed[row])
        assert torch.equal(rms_norm(x, weight, 1e-6)[row], rms_norm(x[one], weight, 1e-6)[0])


def test_rows_may_lie_apart_and_a_zero_row_stays_zero() -> None:
    x, residual, weight = _inputs(4, 64, torch.float32)
    x[1] = 0
    wide = torch.full((4, 100), torch.nan)
    wide[:, :64] = x
    assert torch.equal(rms_norm(wide[:, :64], weight, 1e-6), rms_norm(x, weight, 1e-6))
    assert (rms_norm(x, weight, 1e-6)[1] == 0).all()
    assert rms_norm(x[:0], weight, 1e-6).shape == (0, 64)


@pytest.mark.parametrize("adds", [False, True])
def test_bytes_and_launches_are_those_of_the_formula(adds: bool) -> None:
    x, residual, weight = _inputs(3, 77, torch.bfloat16)
    with count_traffic() as traffic:
        add_rms_norm(x, residual, weight, 1e-5) if adds else rms_norm(x, weight, 1e-5)
    assert traffic.cost == cost(num_rows=3, size=77, element_size=2, adds=adds)


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, residual, weight = _inputs(2, 8, torch.bfloat16)
    with pytest.raises(KernelInputError, match=r"fp32 \(8,\) is needed"):
        rms_norm(x, weight[:7], 1e-5)
    with pytest.raises(KernelInputError, match="dense rows is needed"):
        rms_norm(x.T, weight[:2], 1e-5)
    with pytest.raises(KernelInputError, match="x's shape, dtype"):
        add_rms_norm(x, residual.float(), weight, 1e-5)
