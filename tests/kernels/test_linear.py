"""The product against float64 and the reference, and the stability of its rows."""

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear import linear

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(5, 123, 77), (1, 16, 4), (3, 1, 1), (4, 15, 3), (7, 31, 130), (8, 576, 96), (65, 64, 9)]


def _problem(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(m * 10007 + k * 101 + n)
    x = torch.randn(m, k, generator=generator)
    weight = torch.randn(n, k, generator=generator).to(dtype)
    return x, weight, torch.randn(n, generator=generator)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_product_is_that_of_float64(
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    with_bias: bool,
    cpp: None,
    poisoned_empty: None,
) -> None:
    x, weight, bias = _problem(*shape, dtype)
    out = linear(x, weight, bias if with_bias else None)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0.0)
    magnitude = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert out.dtype == torch.float32
    assert ((out.double() - exact).abs() <= 2.0**-20 * magnitude).all()


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [(torch.float32, 2.0**-20), (torch.float16, 2.0**-10), (torch.bfloat16, 2.0**-7)],
    ids=str,
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_is_that_of_the_reference(
    shape: tuple[int, int, int], dtype: torch.dtype, rounding: float, cpp: None
) -> None:
    x, weight, bias = _problem(*shape, dtype)
    out = linear(x, weight, bias)
    with use_backend("reference"):
        reference = linear(x, weight, bias)
    magnitude = x.abs() @ weight.float().abs().T + bias.abs()
    assert reference.dtype == out.dtype == torch.float32
    assert ((out - reference).abs() <= rounding * magnitude).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("k", "n"), [(123, 77), (576, 200), (1536, 50)])
def test_row_has_the_same_bits_in_any_company(
    k: int, n: int, dtype: torch.dtype, cpp: None
) -> None:
    x, weight, bias = _problem(64, k, n, dtype)
    alone = torch.cat([linear(x[m : m + 1], weight, bias) for m in range(64)])
    for rows in [*range(2, 18), 31, 32, 33, 64]:
        assert torch.equal(linear(x[:rows], weight, bias), alone[:rows]), f"{rows} rows"
    assert torch.equal(linear(x[7:20], weight, bias), alone[7:20])


def test_row_has_the_same_bits_on_any_number_of_threads(cpp: None, threads: None) -> None:
    x, weight, _ = _problem(9, 576, 333, torch.bfloat16)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(linear(x, weight))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_output_column_has_the_same_bits_in_a_trimmed_weight(cpp: None) -> None:
    x, weight, _ = _problem(5, 576, 203, torch.bfloat16)
    kept = torch.tensor([0, 3, 17, 18, 150, 202])
    assert torch.equal(linear(x, weight[kept]), linear(x, weight)[:, kept])


def test_strided_rows_give_the_bits_of_dense_ones(cpp: None) -> None:
    x, weight, _ = _problem(6, 123, 40, torch.bfloat16)
    wide = torch.full((6, 300), torch.nan)
    wide[:, 50:173] = x
    expected = linear(x, weight)
    assert torch.equal(linear(wide[:, 50:173], weight), expected)
    assert torch.equal(linear(x.T.contiguous().T, weight), expected)


def test_rows_do_not_leak_into_each_other(cpp: None) -> None:
    x, weight, _ = _problem(4, 77, 10, torch.bfloat16)
    x[2] = torch.nan
    out = linear(x, weight)
    assert out[2].isnan().all()
    assert out[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0)])
def test_empty_product_is_empty(m: int, n: int, cpp: None) -> None:
    assert linear(torch.zeros(m, 8), torch.zeros(n, 8)).shape == (m, n)


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(KernelInputError, match="x has 8 columns but weight has 9"):
        linear(torch.zeros(2, 8), torch.zeros(3, 9))
    with pytest.raises(KernelInputError, match="two dimensions"):
        linear(torch.zeros(2, 2, 8), torch.zeros(3, 8))
    with pytest.raises(KernelInputError, match=r"bias has shape \(4,\)"):
        linear(torch.zeros(2, 8), torch.zeros(3, 8), torch.zeros(4))
    with pytest.raises(KernelInputError, match="contiguous"):
        linear(torch.zeros(2, 8), torch.zeros(8, 3).T)


def test_output_is_fp32_whatever_the_default_dtype(cpp: None) -> None:
    x, weight, _ = _problem(3, 40, 50, torch.bfloat16)
    expected = linear(x, weight)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(linear(x, weight), expected)
    finally:
        torch.set_default_dtype(torch.float32)
