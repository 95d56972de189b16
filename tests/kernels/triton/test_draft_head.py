"""The best tokens of a head in Triton: against float64 logits, with ties, NaN and odd shapes."""

from __future__ import annotations

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.configurations import Configuration, use_configurations
from draftsmith.kernels.cost import count_launches
from draftsmith.kernels.draft_head import MAX_COUNT, cost, draft_head
from draftsmith.kernels.draft_head.cost import MAX_SPANS, span_of
from tests.support.traffic import count_traffic

SMALL = {"draft_head": Configuration(blocks={"BLOCK_N": 16, "BLOCK_K": 32})}

pytestmark = pytest.mark.usefixtures("triton")


def case(m: int, n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
    return x, weight


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
@pytest.mark.parametrize(("shape", "count"), [((3, 100, 37), 5), ((17, 33, 64), 1), ((1, 5, 7), 5)])
def test_best_logits_and_log_sums(
    x_type: torch.dtype,
    weight_type: torch.dtype,
    shape: tuple[int, int, int],
    count: int,
    poisoned_empty: None,
) -> None:
    x, weight = case(*shape)
    x, weight = x.to(x_type), weight.to(weight_type)
    bias = torch.randn(shape[1], generator=torch.Generator().manual_seed(1))
    with use_configurations(SMALL):
        found = draft_head(x, weight, count, bias=bias, with_log_sum=True)
    exact = x.double() @ weight.double().T + bias
    limit = 2.0**-20 * float((x.double().abs() @ weight.double().abs().T + bias.abs()).max())
    values = exact.topk(count).values
    assert (found.values - values).abs().max() <= limit
    assert (exact.gather(1, found.columns) - found.values).abs().max() <= limit
    assert found.log_sums is not None
    log_sums = exact.logsumexp(1)
    assert ((found.log_sums - log_sums).abs() <= limit + 2.0**-18 * log_sums.abs()).all()
    assert (found.values[:, 1:] <= found.values[:, :-1]).all()
    assert all(len(set(row)) == count for row in found.columns.tolist())


@pytest.mark.parametrize("count", [2, MAX_COUNT])
def test_many_columns_across_spans_in_order(count: int) -> None:
    """Logits are whole numbers: equal ones come by column, and the reference's set is met."""
    x = torch.eye(2, 8)
    weight = torch.randint(-4, 5, (150, 8), generator=torch.Generator().manual_seed(2)).float()
    with use_configurations(SMALL):
        found = draft_head(x, weight, count)
    logits = x @ weight.T
    order = torch.sort(logits, dim=1, descending=True, stable=True)
    assert torch.equal(found.values, order.values[:, :count])
    assert torch.equal(found.columns, order.indices[:, :count])
    assert found.log_sums is None


def test_zeros_are_equal_and_nan_comes_first() -> None:
    x = torch.ones(1, 1)
    weight = torch.zeros(40, 1)
    weight[3], weight[20], weight[30] = -0.0, torch.nan, torch.inf
    with use_configurations(SMALL):
        found = draft_head(x, weight, 4, with_log_sum=True)
        plain = draft_head(x, weight[:20], 3)
    assert found.columns.tolist() == [[20, 30, 0, 1]]
    assert found.values[0, 0].isnan() and found.values[0, 1:].tolist() == [torch.inf, 0.0, 0.0]
    assert found.log_sums is not None and found.log_sums.isnan().all()
    assert plain.columns.tolist() == [[0, 1, 2]]


def test_cap_bends_the_logits() -> None:
    x, weight = case(2, 40, 16)
    with use_configurations(SMALL):
        found = draft_head(x, weight, 3, softcap=5.0, with_log_sum=True)
    exact = 5.0 * torch.tanh(x.double() @ weight.double().T / 5.0)
    assert torch.allclose(found.values.double(), exact.topk(3).values, atol=2e-5)
    assert found.log_sums is not None
    assert torch.allclose(found.log_sums.double(), exact.logsumexp(1), atol=2e-5)


def test_rows_do_not_depend_on_their_company() -> None:
    x, weight = case(17, 50, 48)
    with use_configurations(SMALL):
        whole = draft_head(x, weight, 3, with_log_sum=True)
        for rows in (slice(0, 1), slice(16, 17), slice(2, 9)):
            part = draft_head(x[rows], weight, 3, with_log_sum=True)
            assert torch.equal(part.values, whole.values[rows])
            assert torch.equal(part.columns, whole.columns[rows])
            assert part.log_sums is not None and whole.log_sums is not None
            assert torch.equal(part.log_sums, whole.log_sums[rows])


@pytest.mark.parametrize("with_log_sum", [False, True])
def test_bytes_and_launches_are_those_of_the_formula(with_log_sum: bool) -> None:
    x, weight = case(17, 50, 40)
    x, weight = x.bfloat16(), weight.bfloat16()
    with use_configurations(SMALL), count_traffic() as traffic:
        draft_head(x, weight, 3, with_log_sum=with_log_sum)
    assert traffic.cost == cost(
        num_rows=17,
        num_outputs=50,
        depth=40,
        count=3,
        element_size=2,
        x_element_size=2,
        block=16,
        with_log_sum=with_log_sum,
    )


def test_spans_cover_any_head() -> None:
    for outputs in (1, 16, 17, 4096, 32_000, 151_936, 262_144):
        span = span_of(outputs, 64)
        assert span % 64 == 0 and -(-outputs // span) <= MAX_SPANS


def test_other_heads_take_the_reference() -> None:
    """More columns than are ranked, and no rows at all."""
    x, weight = case(2, 100, 8)
    with count_launches() as launches:
        found = draft_head(x, weight, MAX_COUNT + 1)
        assert draft_head(x[:0], weight, 2).values.shape == (0, 2)
    assert launches.total == 0
    with use_backend("reference"):
        assert torch.equal(found.columns, draft_head(x, weight, MAX_COUNT + 1).columns)
