"""Candidates of hidden rows: as the logits say, and made without them where raw logits decide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tablemodel import TableModel

from draftsmith.engine.drafters.plan import Expansion
from draftsmith.engine.drafters.ranking import Ranked, rank
from draftsmith.engine.drafters.shapes import DynamicShape
from draftsmith.engine.sampling import RowContext
from draftsmith.engine.trees.static import TreeTemplate, from_branching
from draftsmith.engine.types import HeadRows, Sampling

VOCAB = 40
TABLE = 2.0 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(7))
TOKENS = (3, 17, 30)
KEPT = torch.arange(1, VOCAB, 3)
STATIC = from_branching((4, 2))
DYNAMIC = DynamicShape(depth=3, top_k=5, budget=9)


class Trimmable(TableModel):
    """A table whose head can be trimmed."""

    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        logits = super().head(hidden)
        return logits if trimmed is None else logits[:, trimmed.token_ids]


class WithoutLogits(Trimmable):
    """A table of which nobody may ask for all logits."""

    asked = 0

    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        raise AssertionError("all logits were asked for")

    def top(self, hidden: torch.Tensor, count: int, *arguments: Any, **options: Any) -> Any:
        self.asked += 1
        return Trimmable(self._table).top(hidden, count, *arguments, **options)


def contexts(**sampling: Any) -> list[RowContext]:
    return [RowContext(Sampling(**sampling), 1, [0, token]) for token in TOKENS]


def candidates(model: TableModel, contexts: list[RowContext], **fields: Any) -> list[Ranked]:
    hidden = torch.tensor([[token, 0] for token in TOKENS])
    return rank(hidden, contexts, Expansion(model=model, **fields))


@pytest.mark.parametrize("head", [None, HeadRows(KEPT, torch.zeros(len(KEPT), 2))])
@pytest.mark.parametrize("shape", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_greedy_candidates_are_the_best_logits_and_need_no_others(
    shape: TreeTemplate | DynamicShape, head: HeadRows | None
) -> None:
    model = WithoutLogits(TABLE)
    ranked = candidates(model, contexts(), shape=shape, head=head, stop_threshold=0.3)
    assert model.asked == 1
    count = 4 if isinstance(shape, TreeTemplate) else 5
    for row, token in zip(ranked, TOKENS, strict=True):
        ids = torch.arange(VOCAB) if head is None else KEPT
        shares = TABLE[token, ids].log_softmax(-1)
        best = shares.topk(count)
        assert row.tokens == ids[best.indices].tolist()
        assert row.confident == (float(best.values[0].exp()) >= 0.3)
        if isinstance(shape, DynamicShape):
            assert row.log_probs == pytest.approx(best.values.tolist(), abs=1e-5)


def test_the_threshold_is_of_the_raw_share_of_the_best() -> None:
    ranked = candidates(WithoutLogits(TABLE), contexts(), shape=STATIC, stop_threshold=0.3)
    assert [row.confident for row in ranked] == [True, False, False]
    mixed = contexts(presence_penalty=2.0)
    ranked = candidates(Trimmable(TABLE), mixed, shape=STATIC, stop_threshold=0.3)
    assert [row.confident for row in ranked] == [True, False, False]


def test_one_request_with_penalties_takes_all_rows_by_way_of_logits() -> None:
    mixed = contexts()
    mixed[1] = contexts(presence_penalty=2.0)[1]
    plain = candidates(Trimmable(TABLE), contexts(), shape=DYNAMIC)
    ranked = candidates(Trimmable(TABLE), mixed, shape=DYNAMIC)
    with pytest.raises(AssertionError, match="all logits"):
        candidates(WithoutLogits(TABLE), mixed, shape=DYNAMIC)
    for i in (0, 2):
        assert ranked[i].tokens == plain[i].tokens
        assert ranked[i].log_probs == pytest.approx(plain[i].log_probs, abs=1e-5)


def test_a_head_smaller_than_the_ranks_gives_what_it_has() -> None:
    head = HeadRows(torch.tensor([5, 9]), torch.zeros(2, 2))
    ranked = candidates(WithoutLogits(TABLE), contexts(), shape=DYNAMIC, head=head)
    assert [sorted(row.tokens) for row in ranked] == [[5, 9]] * 3


def test_what_has_no_chance_is_no_candidate() -> None:
    table = torch.full((VOCAB, VOCAB), -torch.inf)
    table[:, [8, 4]] = 1.0
    for row in candidates(WithoutLogits(table), contexts(), shape=DYNAMIC):
        assert row.tokens == [4, 8]
        assert row.log_probs == pytest.approx([-0.693147] * 2, abs=1e-5)
