"""The gated activation in Triton: reference, extremes, stable rows, bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.configurations import Configuration, use_configurations
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.gate import Activation, cost, gate
from tests.support.traffic import count_traffic

pytestmark = pytest.mark.usefixtures("triton", "small_blocks", "poisoned_empty")

TOLERANCES = {torch.float32: 2**-20, torch.bfloat16: 2**-8, torch.float16: 2**-10}


@pytest.fixture
def small_blocks() -> Iterator[None]:
    with use_configurations({"gate": Configuration(blocks={"BLOCK": 32})}):
        yield


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("num_rows", "size"), [(1, 1), (3, 75), (2, 64)])
def test_activation_is_that_of_the_reference(
    activation: Activation, dtype: torch.dtype, num_rows: int, size: int
) -> None:
    x = torch.randn(num_rows, 2 * size, generator=torch.Generator().manual_seed(size)) * 3
    x = x.to(dtype)
    out = gate(x, activation)
    with use_backend("reference"):
        wanted = gate(x, activation)
    torch.testing.assert_close(out, wanted, rtol=TOLERANCES[dtype], atol=2e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_large_gates_neither_overflow_nor_vanish(activation: Activation) -> None:
    x = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4, 1.0, 1.0, 1.0, 1.0, 1.0]])
    torch.testing.assert_close(gate(x, activation), x[:, :5].clamp(min=0), rtol=1e-6, atol=1e-6)


def test_rows_have_the_bits_they_have_alone_and_may_lie_apart() -> None:
    x = torch.randn(5, 2 * 40, generator=torch.Generator().manual_seed(1)).bfloat16()
    wide = torch.full((5, 100), torch.nan, dtype=torch.bfloat16)
    wide[:, :80] = x
    together = gate(wide[:, :80], "silu")
    for row in range(5):
        assert torch.equal(gate(x[row : row + 1], "silu")[0], together[row])
    assert gate(x[:0], "silu").shape == (0, 40)


def test_bytes_and_launches_are_those_of_the_formula() -> None:
    with count_traffic() as traffic:
        gate(torch.zeros(3, 2 * 45, dtype=torch.bfloat16), "silu")
    assert traffic.cost == cost(num_rows=3, size=45, element_size=2)


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(KernelInputError, match="activation 'relu' is not one of silu"):
        gate(torch.zeros(1, 2), "relu")  # type: ignore[arg-type]
    with pytest.raises(KernelInputError, match=r"floats \[N, 2 I\]"):
        gate(torch.zeros(1, 3), "silu")
