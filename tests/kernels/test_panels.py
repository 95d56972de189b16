"""Weights in panels: every number comes back, and products have the bits of the dense weight's."""

import pytest
import torch

from draftsmith.kernels import bf12_gemv
from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear import linear
from draftsmith.kernels.panels import pack_panels

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (16, 8), (17, 123), (96, 576), (33, 1025), (5, 1537)]


def weight_of(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_comes_back(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = weight_of(shape, dtype)
    packed = pack_panels(weight)
    assert (packed.shape, packed.dtype) == (shape, dtype)
    assert torch.equal(packed.unpack(), weight)
    index = torch.randint(0, shape[0], (9,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(packed.rows(index), weight[index])
    assert packed.rows(index[:0]).shape == (0, shape[1])
    whole_panels = -(-shape[0] // 16) * 16
    assert packed.num_bytes == whole_panels * shape[1] * dtype.itemsize


@pytest.mark.parametrize("form", ["panels", "bf12"])
@pytest.mark.parametrize("row", [-1, 17])
def test_rows_that_it_lacks_are_refused(form: str, row: int) -> None:
    weight = weight_of((17, 24), torch.bfloat16)
    packed = (
        pack_panels(weight)
        if form == "panels"
        else bf12_gemv.pack(weight, bf12_gemv.commonest(bf12_gemv.high_byte_counts(weight))[0])
    )
    with pytest.raises(KernelInputError, match=f"{row}.* the weight has 17"):
        packed.rows(torch.tensor([3, row]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_have_the_bits_of_the_dense_weight(
    shape: tuple[int, int], dtype: torch.dtype, cpp: None, threads: None, poisoned_empty: None
) -> None:
    weight = weight_of(shape, dtype)
    packed = pack_panels(weight)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(200, shape[1], generator=generator)
    bias = torch.randn(shape[0], generator=generator)
    expected = linear(x, weight, bias)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for rows in (*range(1, 15), 64, 200):
            assert torch.equal(linear(x[:rows], packed, bias), expected[:rows]), (count, rows)


def test_the_reference_product_unpacks() -> None:
    weight, x = weight_of((20, 24), torch.bfloat16), torch.randn(3, 24)
    with use_backend("reference"):
        assert torch.equal(linear(x, pack_panels(weight)), linear(x, weight))


@pytest.mark.parametrize(
    ("weight", "word"),
    [
        (torch.zeros(4, 4, dtype=torch.float64), "float64"),
        (torch.zeros(4), r"\[N, K\]"),
        (torch.zeros(4, 4, device="meta"), "on meta"),
    ],
)
def test_what_has_no_panels_is_refused(weight: torch.Tensor, word: str) -> None:
    with pytest.raises(KernelInputError, match=word):
        pack_panels(weight)
