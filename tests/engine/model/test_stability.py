"""A row's bits depend on that row alone in every operation outside the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from draftsmith.engine.model.activation import GatedActivation
from draftsmith.engine.model.norm import RmsNorm

CPU = torch.device("cpu")
COUNTS = (2, 3, 5, 8, 13, 16, 23, 33, 40)


@pytest.fixture(params=[1, 2, 3, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def assert_row_stable(function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> None:
    alone = torch.cat([function(rows[i : i + 1]) for i in range(len(rows))])
    for count in COUNTS:
        assert torch.equal(function(rows[:count]), alone[:count]), f"{count} rows"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("kind", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("size", [17, 1536, 1530, 8960])
def test_activation_is_row_stable(kind: str, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(max(COUNTS), 2 * size, generator=generator) * 3
    assert_row_stable(GatedActivation(kind, CPU), rows)  # type: ignore[arg-type]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [17, 576, 4095])
def test_norm_is_row_stable(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    norm = RmsNorm(torch.randn(size, generator=generator), 1e-5)
    assert_row_stable(norm, torch.randn(max(COUNTS), size, generator=generator))


def test_activation_equals_torchs() -> None:
    rows = torch.linspace(-120, 120, 4000).view(2, -1)
    gate, up = rows.chunk(2, dim=-1)
    silu = GatedActivation("silu", CPU)(rows)
    torch.testing.assert_close(silu, functional.silu(gate) * up, atol=1e-6, rtol=1e-6)
    gelu = GatedActivation("gelu_pytorch_tanh", CPU)(rows)
    expected = functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(gelu, expected, atol=1e-5, rtol=1e-5)


def test_norm_equals_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(100, generator=generator)
    rows = torch.randn(5, 100, generator=generator)
    expected = functional.rms_norm(rows, (100,), weight, 1e-5)
    torch.testing.assert_close(RmsNorm(weight, 1e-5)(rows), expected, atol=1e-6, rtol=1e-6)
    zeros = RmsNorm(weight, 1e-5)(torch.zeros(1, 100))
    assert torch.equal(zeros, torch.zeros(1, 100))
