"""The product in Triton: reference, odd shapes, stable rows, bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftsmith.kernels.configurations import Configuration, use_configurations
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear import cost, linear
from tests.support.traffic import count_traffic

pytestmark = pytest.mark.usefixtures("triton", "small_blocks", "poisoned_empty")


@pytest.fixture
def small_blocks() -> Iterator[None]:
    """Several blocks in each dimension for shapes that the interpreter finishes soon."""
    blocks = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32}
    with use_configurations({"linear": Configuration(blocks=blocks)}):
        yield


def _inputs(
    num_rows: int, num_outputs: int, depth: int, x_type: torch.dtype, weight_type: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows + depth)
    x = torch.randn(num_rows, depth, generator=generator).to(x_type)
    weight = torch.randn(num_outputs, depth, generator=generator).to(weight_type)
    return x, weight, torch.randn(num_outputs, generator=generator)


@pytest.mark.parametrize(
    ("num_rows", "num_outputs", "depth"), [(1, 7, 96), (17, 33, 61), (5, 40, 1)]
)
@pytest.mark.parametrize(
    ("x_type", "weight_type"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_product_is_that_of_the_exact_one(
    num_rows: int,
    num_outputs: int,
    depth: int,
    x_type: torch.dtype,
    weight_type: torch.dtype,
    with_bias: bool,
) -> None:
    x, weight, bias = _inputs(num_rows, num_outputs, depth, x_type, weight_type)
    out = linear(x, weight, bias if with_bias else None)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    bound = 2**-20 * (x.double().abs() @ weight.double().abs().T + bias.abs())
    rounding = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}[x_type]
    assert out.dtype == x_type and out.shape == (num_rows, num_outputs)
    assert ((out.double() - exact).abs() <= bound + rounding * exact.abs()).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_have_the_bits_they_have_alone(dtype: torch.dtype) -> None:
    """Among 35 rows, hence in any place of a block, next to rows of NaN."""
    x, weight, bias = _inputs(35, 19, 70, dtype, dtype)
    together = linear(x, weight, bias)
    for row in (0, 1, 15, 16, 34):
        company = torch.full_like(x[:18], torch.nan)
        company[3] = x[row]
        assert torch.equal(linear(x[row : row + 1], weight, bias)[0], together[row])
        assert torch.equal(linear(company, weight, bias)[3], together[row])


def test_rows_apart_and_nothing_at_all() -> None:
    x, weight, _ = _inputs(3, 5, 40, torch.float32, torch.float32)
    wide = torch.full((3, 50), torch.nan)
    wide[:, :40] = x
    assert torch.equal(linear(wide[:, :40], weight), linear(x, weight))
    assert torch.equal(linear(x.T.contiguous().T, weight), linear(x, weight))
    assert linear(x[:0], weight).shape == (0, 5)
    assert linear(x, weight[:0]).shape == (3, 0)
    assert torch.equal(linear(x[:, :0], weight[:, :0].contiguous()), torch.zeros(3, 5))


@pytest.mark.parametrize(("num_rows", "depth", "has_bias"), [(3, 64, False), (18, 45, True)])
def test_bytes_and_launches_are_those_of_the_formula(
    num_rows: int, depth: int, has_bias: bool
) -> None:
    x, weight, bias = _inputs(num_rows, 37, depth, torch.bfloat16, torch.bfloat16)
    with count_traffic() as traffic:
        linear(x, weight, bias if has_bias else None)
    assert traffic.cost == cost(
        num_rows=num_rows,
        num_outputs=37,
        depth=depth,
        x_size=2,
        weight_size=2,
        bias_size=4 if has_bias else 0,
    )


def test_mixed_types_are_refused() -> None:
    with pytest.raises(KernelInputError, match="must be alike, or x fp32"):
        linear(torch.zeros(1, 4, dtype=torch.bfloat16), torch.zeros(2, 4))
