"""Products with 12-bit weights in Triton: the bits of the plain weight's, row by row."""

from __future__ import annotations

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.bf12_gemv.product import cost, product
from draftsmith.kernels.bf12_gemv.window import (
    WindowWeight,
    best_window,
    exponent_counts,
    pack_window,
)
from draftsmith.kernels.configurations import Configuration, use_configurations
from draftsmith.kernels.errors import KernelInputError
from tests.support.traffic import count_traffic

SMALL = {"bf12_gemv": Configuration(blocks={"BLOCK_N": 16, "BLOCK_K": 64, "SPLIT": 256})}
SHAPES = [(17, 123), (33, 576), (16, 64), (5, 1025), (1, 1)]

pytestmark = pytest.mark.usefixtures("triton")


def gaussian(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def packed(weight: torch.Tensor) -> WindowWeight:
    return pack_window(weight, best_window(exponent_counts(weight))[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_products_have_the_bits_of_plain_ones(
    shape: tuple[int, int], poisoned_empty: None
) -> None:
    """With few escapes and with nearly all; against float64 within the tolerance."""
    weight, generator = gaussian(*shape), torch.Generator().manual_seed(1)
    x = torch.randn(5, shape[1], generator=generator)
    bias = torch.randn(shape[0], generator=generator)
    with use_configurations(SMALL):
        plain = product(x, weight, bias)
        for form in (packed(weight), pack_window(weight, 60)):
            assert torch.equal(product(x, form, bias), plain)
    wide = x.bfloat16().double()
    exact = wide @ weight.double().T + bias
    limit = wide.abs() @ weight.double().abs().T * 2.0**-18 + bias.abs() * 2.0**-18
    assert ((plain - exact).abs() <= limit).all()
    with use_backend("reference"):
        assert ((product(x, packed(weight), bias) - exact).abs() <= limit).all()


def test_hostile_weights_give_the_same_products_or_the_same_nan() -> None:
    generator = torch.Generator().manual_seed(2)
    weight = torch.randint(0, 1 << 16, (32, 123), generator=generator).to(torch.int16)
    weight = weight.view(torch.bfloat16)
    x = torch.randn(3, 123, generator=generator)
    with use_configurations(SMALL):
        found, plain = product(x, packed(weight)), product(x, weight)
    assert torch.allclose(found, plain, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rows_do_not_depend_on_their_company(dtype: torch.dtype) -> None:
    """One row, two, sixteen and seventeen of them: the same bits, in x's type."""
    weight = packed(gaussian(20, 320))
    x = torch.randn(17, 320, generator=torch.Generator().manual_seed(3)).to(dtype)
    with use_configurations(SMALL):
        whole = product(x, weight)
        assert whole.dtype == dtype and whole.isfinite().all()
        for rows in (slice(0, 1), slice(16, 17), slice(3, 5), slice(0, 16)):
            assert torch.equal(product(x[rows], weight), whole[rows])


def test_bytes_and_launches_are_those_of_the_formula() -> None:
    weight, x = pack_window(gaussian(33, 600), 118), torch.ones(17, 600, dtype=torch.bfloat16)
    assert 0 < len(weight.values) < weight.shape[0] * weight.shape[1]
    tickets = torch.zeros(6, dtype=torch.int32)
    with use_configurations(SMALL), count_traffic() as traffic:
        product(x, weight, tickets=tickets)
    assert traffic.cost == cost(
        num_rows=17,
        num_outputs=33,
        depth=600,
        num_escapes=len(weight.values),
        block_n=16,
        block_k=64,
        split=256,
    )
    assert tickets.tolist() == [0] * 6


def test_no_rows_launch_nothing() -> None:
    with count_traffic() as traffic:
        assert product(torch.zeros(0, 64), packed(gaussian(8, 64))).shape == (0, 8)
    assert traffic.cost.launches == 0


def test_arguments_that_do_not_fit_are_refused() -> None:
    weight = packed(gaussian(8, 64))
    with pytest.raises(KernelInputError, match=r"\[M, 64\] is needed"):
        product(torch.zeros(1, 32), weight)
    with pytest.raises(KernelInputError, match=r"weight needs \(8,\)"):
        product(torch.zeros(1, 64), weight, torch.zeros(7))
    with pytest.raises(KernelInputError, match="dense bf16 is needed"):
        product(torch.zeros(1, 64), torch.zeros(8, 64))
