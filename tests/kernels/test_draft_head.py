"""The best logits of a head: against the product, sorted, in any form of the weight and company."""

from collections.abc import Callable

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.bf12_gemv import commonest, high_byte_counts, pack
from draftsmith.kernels.draft_head import TopLogits, draft_head
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear import linear
from draftsmith.kernels.panels import Weight, pack_panels

INFINITY = float("inf")
# (M, K, N, count): whole chunks of 256 outputs and not, whole panels of 16 and not, one of each.
SHAPES = [
    (1, 1, 1, 1),
    (3, 1, 40, 7),
    (5, 123, 77, 64),
    (7, 31, 256, 1),
    (9, 64, 257, 33),
    (2, 40, 1000, 64),
    (65, 48, 530, 5),
    (1, 576, 4096, 8),
]


def _bf12(weight: torch.Tensor) -> Weight:
    highs, _ = commonest(high_byte_counts(weight))
    return pack(weight, highs)


FORMS: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], Weight]]] = {
    "fp32": (torch.float32, lambda weight: weight),
    "bf16": (torch.bfloat16, lambda weight: weight),
    "fp16": (torch.float16, lambda weight: weight),
    "fp32 panels": (torch.float32, pack_panels),
    "bf16 panels": (torch.bfloat16, pack_panels),
    "fp16 panels": (torch.float16, pack_panels),
    "bf12": (torch.bfloat16, _bf12),
}


def operands(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m * 10007 + k * 101 + n)
    x = torch.randn(m, k, generator=generator)
    return x, torch.randn(n, k, generator=generator), torch.randn(n, generator=generator)


def whole_numbers(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Operands of small whole numbers: exact products, and so many equal ones."""
    return tuple(part.round() for part in operands(m, k, n))  # type: ignore[return-value]


def check(found: TopLogits, logits: torch.Tensor, count: int) -> None:
    """``found`` is what sorting these very logits gives; its log-sum within the stated bound."""
    values, columns = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(found.values, values[:, :count])
    assert torch.equal(found.columns, columns[:, :count])
    if found.log_sums is not None:
        exact = logits.double().logsumexp(-1)
        bound = 2.0**-21 * exact.abs().clamp(min=1.0)
        assert ((found.log_sums.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_it_is_the_product_sorted(
    shape: tuple[int, int, int, int], form: str, with_bias: bool, cpp: None, poisoned_empty: None
) -> None:
    m, k, n, count = shape
    dtype, packer = FORMS[form]
    for make in (operands, whole_numbers):
        x, weight, bias = make(m, k, n)
        weight = weight.to(dtype)
        chosen = bias if with_bias else None
        found = draft_head(x, packer(weight), count, bias=chosen, with_log_sum=True)
        check(found, linear(x, weight, chosen), count)


@pytest.mark.parametrize("count", range(1, 65))
def test_every_count(count: int, cpp: None, poisoned_empty: None) -> None:
    x, weight, _ = whole_numbers(3, 12, 300)
    found = draft_head(x, weight, count)
    assert found.log_sums is None
    check(found, linear(x, weight), count)


def test_all_logits_equal_give_the_first_columns(cpp: None, threads: None) -> None:
    weight = torch.zeros(1000, 8)
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        found = draft_head(torch.ones(40, 8), weight, 20, with_log_sum=True)
        assert torch.equal(found.columns, torch.arange(20).expand(40, 20))
        check(found, torch.zeros(40, 1000), 20)


@pytest.mark.parametrize("form", ["fp32", "fp16 panels", "bf12"])
def test_bits_do_not_depend_on_threads(form: str, cpp: None, threads: None) -> None:
    dtype, packer = FORMS[form]
    x, weight, bias = operands(9, 576, 3001)
    packed = packer(weight.to(dtype))
    results = []
    for number in (1, 2, 3, 7):
        torch.set_num_threads(number)
        results.append(draft_head(x, packed, 16, bias=bias, softcap=9.0, with_log_sum=True))
    for other in results[1:]:
        assert_same(other, results[0])


def assert_same(a: TopLogits, b: TopLogits) -> None:
    assert torch.equal(a.values, b.values)
    assert torch.equal(a.columns, b.columns)
    assert a.log_sums is not None
    assert b.log_sums is not None
    assert torch.equal(a.log_sums, b.log_sums)


@pytest.mark.parametrize("form", ["fp32", "bf16 panels", "bf12"])
def test_a_row_has_the_same_bits_in_any_company(form: str, cpp: None) -> None:
    dtype, packer = FORMS[form]
    x, weight, _ = operands(64, 123, 700)
    packed = packer(weight.to(dtype))
    alone = [draft_head(x[m : m + 1], packed, 9, with_log_sum=True) for m in range(64)]
    for rows in [*range(2, 18), 31, 32, 33, 64]:
        together = draft_head(x[:rows], packed, 9, with_log_sum=True)
        assert torch.equal(together.values, torch.cat([one.values for one in alone[:rows]]))
        assert torch.equal(together.columns, torch.cat([one.columns for one in alone[:rows]]))
        log_sums = [one.log_sums for one in alone[:rows] if one.log_sums is not None]
        assert together.log_sums is not None
        assert torch.equal(together.log_sums, torch.cat(log_sums))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_capped_logits(
    shape: tuple[int, int, int, int], softcap: float, cpp: None, poisoned_empty: None
) -> None:
    m, k, n, count = shape
    x, weight, bias = operands(m, k, n)
    found = draft_head(x, weight, count, bias=bias, softcap=softcap, with_log_sum=True)
    exact = softcap * torch.tanh(linear(x, weight, bias).double() / softcap)
    bound = 2.0**-20 * softcap
    assert ((found.values - exact.gather(1, found.columns)).abs() <= bound).all()
    best = exact.sort(dim=-1, descending=True).values[:, :count]
    assert ((found.values - best).abs() <= bound).all()
    assert all(len(set(row)) == count for row in found.columns.tolist())
    assert found.log_sums is not None
    log_sums = exact.logsumexp(-1)
    assert ((found.log_sums - log_sums).abs() <= bound + 2.0**-21 * log_sums.abs()).all()


@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_reference_agrees(
    dtype: torch.dtype, softcap: float | None, with_bias: bool, cpp: None
) -> None:
    x, weight, bias = operands(6, 40, 301)
    x, weight = x.to(dtype).float(), weight.to(dtype)
    chosen = bias if with_bias else None
    ours = draft_head(x, weight, 12, bias=chosen, softcap=softcap, with_log_sum=True)
    with use_backend("reference"):
        theirs = draft_head(x, weight, 12, bias=chosen, softcap=softcap, with_log_sum=True)
    rounding = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    magnitude = float((x.abs() @ weight.float().abs().T + bias.abs()).max())
    assert theirs.values.dtype == ours.values.dtype == torch.float32
    assert theirs.columns.dtype == ours.columns.dtype == torch.int64
    assert (ours.values - theirs.values).abs().max() <= rounding * magnitude
    assert ours.log_sums is not None
    assert theirs.log_sums is not None
    assert (ours.log_sums - theirs.log_sums).abs().max() <= rounding * magnitude


def test_a_packed_weight_goes_to_the_reference_unpacked() -> None:
    x, weight, _ = operands(3, 20, 50)
    with use_backend("reference"):
        plain = draft_head(x, weight.bfloat16(), 4, with_log_sum=True)
        packed = draft_head(x, _bf12(weight.bfloat16()), 4, with_log_sum=True)
    assert_same(packed, plain)


@pytest.mark.parametrize("backend", ["cpp", "reference"])
@pytest.mark.parametrize("column", [0, 255, 256, 299])
def test_nan_comes_first_and_spoils_the_sum_of_its_row_alone(
    backend: str, column: int, cpp: None
) -> None:
    x = torch.eye(3, 4)
    weight = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
    bias = torch.zeros(300)
    weight[column, 3] = torch.nan  # met by every row: 0 * NaN
    with use_backend(backend):  # type: ignore[arg-type]
        found = draft_head(x, weight, 3, bias=bias, with_log_sum=True)
        assert found.columns[:, 0].tolist() == [column] * 3
        assert found.values[:, 0].isnan().all()
        assert found.values[:, 1:].isfinite().all()
        assert found.log_sums is not None
        assert found.log_sums.isnan().all()
        weight[column, 3] = 0.0
        x[1] = torch.nan
        found = draft_head(x, weight, 3, softcap=5.0, with_log_sum=True)
    assert found.columns[1, 0] == 0
    assert found.values[1].isnan().all()
    assert found.log_sums is not None
    assert found.log_sums.isnan().tolist() == [False, True, False]
    assert found.values[[0, 2]].isfinite().all()


@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_infinite_logits(backend: str, cpp: None) -> None:
    x, weight = torch.zeros(1, 2), torch.zeros(600, 2)
    lowest = torch.full((600,), -INFINITY)
    cases = {
        "all lowest": (lowest.clone(), -INFINITY),
        "one number": (lowest.clone().index_fill_(0, torch.tensor([400]), 2.5), 2.5),
        "one highest": (torch.zeros(600).index_fill_(0, torch.tensor([300]), INFINITY), INFINITY),
        "NaN among lowest": (lowest.clone().index_fill_(0, torch.tensor([5]), torch.nan), None),
        "NaN and highest": (torch.tensor([INFINITY, *[0.0] * 598, torch.nan]), None),
    }
    for name, (bias, log_sum) in cases.items():
        with use_backend(backend):  # type: ignore[arg-type]
            found = draft_head(x, weight, 1, bias=bias, with_log_sum=True)
        assert found.log_sums is not None
        assert found.columns[0, 0] == bias.argmax(), name
        if log_sum is None:
            assert found.log_sums.isnan().all(), name
        else:
            assert found.log_sums.tolist() == [log_sum], name


def test_large_logits_do_not_overflow_the_sum(cpp: None) -> None:
    x, weight = torch.ones(1, 1), torch.linspace(-3e4, 3e4, 777)[:, None].contiguous()
    check(draft_head(x, weight, 5, with_log_sum=True), linear(x, weight), 5)


def test_strided_and_empty_rows(cpp: None, poisoned_empty: None) -> None:
    x, weight, _ = operands(6, 123, 300)
    wide = torch.full((6, 300), torch.nan)
    wide[:, 50:173] = x
    expected = draft_head(x, weight, 4, with_log_sum=True)
    assert_same(draft_head(wide[:, 50:173], weight, 4, with_log_sum=True), expected)
    assert_same(draft_head(x.T.contiguous().T, weight, 4, with_log_sum=True), expected)
    none = draft_head(x[:0], weight, 4, with_log_sum=True)
    assert none.values.shape == none.columns.shape == (0, 4)
    assert none.log_sums is not None
    assert none.log_sums.shape == (0,)


def test_a_trimmed_head_gives_the_same_logits(cpp: None) -> None:
    x, weight, _ = operands(4, 96, 500)
    kept = torch.arange(3, 500, 7)
    found = draft_head(x, pack_panels(weight.bfloat16()[kept]), 10)
    assert torch.equal(found.values, linear(x, weight.bfloat16()).gather(1, kept[found.columns]))


@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_bad_input_is_refused(backend: str, cpp: None) -> None:
    x, weight = torch.zeros(2, 8), torch.zeros(30, 8)
    with use_backend(backend):  # type: ignore[arg-type]
        with pytest.raises(KernelInputError, match=r"count 31 is outside 1\.\.30, the rows"):
            draft_head(x, weight, 31)
        with pytest.raises(KernelInputError, match="count 0 is outside"):
            draft_head(x, weight, 0)
        with pytest.raises(KernelInputError, match=r"count 1 is outside 1\.\.0"):
            draft_head(x, weight[:0], 1)
        with pytest.raises(KernelInputError, match=r"softcap is -1\.0"):
            draft_head(x, weight, 1, softcap=-1.0)
        with pytest.raises(KernelInputError, match="softcap is nan"):
            draft_head(x, weight, 1, softcap=torch.nan)
        with pytest.raises(KernelInputError, match="x has 8 columns but weight has 7"):
            draft_head(x, torch.zeros(30, 7), 1)
        with pytest.raises(KernelInputError, match=r"bias has shape \(8,\)"):
            draft_head(x, weight, 1, bias=torch.zeros(8))
        with pytest.raises(KernelInputError, match="contiguous"):
            draft_head(x, torch.zeros(8, 30).T, 1)
        with pytest.raises(KernelInputError, match="two dimensions"):
            draft_head(x[0], weight, 1)
