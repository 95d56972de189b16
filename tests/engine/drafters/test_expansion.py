"""The level-by-level growth, with a forward made of a table instead of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tablemodel import TableModel

from draftsmith.engine.drafters.expansion import expand
from draftsmith.engine.drafters.plan import Expansion
from draftsmith.engine.drafters.shapes import DynamicShape
from draftsmith.engine.trees.static import TreeTemplate, from_branching
from draftsmith.engine.types import RowBatch, Sampling, SlotView

VOCAB = 16


LOGITS = 3.0 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))


class TableForward:
    """Hidden rows of ``TableModel``: the last token; remembers the rows that it was asked for."""

    def __init__(self, rooms: dict[int, int] | None = None) -> None:
        self._rooms = rooms or {}
        self.batches: list[RowBatch] = []

    def roots(self, views: Sequence[SlotView]) -> torch.Tensor:
        return torch.tensor([[view.tokens[-1], 0] for view in views])

    def nodes(self, rows: RowBatch) -> torch.Tensor:
        self.batches.append(rows)
        real = [rows.token_ids[b, :width] for b, width in enumerate(rows.widths)]
        return torch.stack([torch.cat(real), torch.zeros_like(torch.cat(real))], dim=-1)

    def room(self, slot: int) -> int:
        return self._rooms.get(slot, 1000)


def view(slot: int, token: int, stops: tuple[int, ...] = (), budget: int = 99) -> SlotView:
    sampling = Sampling(stop_token_ids=stops, ignore_eos=True)
    return SlotView(slot, [0, token], 1, sampling, budget)


def plan(shape: TreeTemplate | DynamicShape, logits: torch.Tensor = LOGITS) -> Expansion:
    return Expansion(shape=shape, model=TableModel(logits))


def test_neighbours_do_not_move_the_rows_of_a_slot_nor_cost_it_room() -> None:
    shape = plan(from_branching((2, 2, 2, 1)))
    narrow = [int(i) for i in LOGITS[3].topk(2).indices]
    lean = view(0, 3, stops=(narrow[1],))  # one of its two roots goes no further
    rooms = {0: 5}
    alone = expand([lean], TableForward(rooms), shape)
    beside = expand([lean, view(1, 5)], TableForward(rooms), shape)
    assert beside.trees[0] == alone.trees[0]
    assert beside.growths[0].rows == alone.growths[0].rows


def test_one_forward_a_level_for_all_slots_and_none_for_leaves() -> None:
    forward = TableForward()
    expand([view(0, 3), view(1, 5)], forward, plan(from_branching((3, 2, 1))))
    assert [batch.widths for batch in forward.batches] == [(3, 3), (6, 6)]
    assert [batch.offset for batch in forward.batches] == [1, 4]
    assert forward.batches[1].positions.unique().tolist() == [3]


def test_chains_are_sent_as_causal_rows() -> None:
    forward = TableForward()
    expand([view(0, 3), view(1, 5)], forward, plan(from_branching((1, 1, 1))))
    assert [batch.visible for batch in forward.batches] == [None, None]
    assert [batch.offset for batch in forward.batches] == [1, 2]


def test_a_row_sees_the_root_its_ancestors_and_itself() -> None:
    forward = TableForward()
    expand([view(0, 3)], forward, plan(from_branching((2, 2, 1))))
    visible = forward.batches[1].visible
    assert visible is not None
    seen = [row.nonzero().flatten().tolist() for row in visible[0]]
    assert seen == [[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 6]]


def test_hopeless_beams_are_not_forwarded() -> None:
    """A budget of one node needs no second level, whatever the depth."""
    forward = TableForward()
    expanded = expand([view(0, 3)], forward, plan(DynamicShape(depth=5, top_k=4, budget=1)))
    assert len(expanded.trees[0]) == 1
    assert sum(sum(batch.widths) for batch in forward.batches) <= 1
    wide = TableForward()
    expand([view(0, 3)], wide, plan(DynamicShape(depth=5, top_k=4, budget=64)))
    assert [batch.widths for batch in wide.batches] == [(4,)] * 4


def test_no_budget_and_empty_templates_run_nothing() -> None:
    forward = TableForward()
    (tree,) = expand([view(0, 3, budget=0)], forward, plan(from_branching((2,)))).trees
    assert len(tree) == 0
    (tree,) = expand([view(0, 3)], forward, plan(TreeTemplate((), ()))).trees
    assert len(tree) == 0
    assert forward.batches == []


def test_b14_equal_logits_go_to_the_lowest_id_as_in_the_target() -> None:
    """cases.md B14: the same tie rule in drafter and target, in chains and trees."""
    forward = TableForward()
    logits = torch.zeros(VOCAB, VOCAB)
    logits[:, [5, 11, 14]] = 2.0
    (chain_tree,) = expand([view(0, 3)], forward, plan(from_branching((1, 1)), logits)).trees
    assert chain_tree.tokens == (5, 5)
    for width in (2, 3, 6):
        (tree,) = expand([view(0, 3)], forward, plan(from_branching((width,)), logits)).trees
        assert tree.tokens[0] == 5
        assert set(tree.tokens[:3]) <= {5, 11, 14}
        assert len(set(tree.tokens)) == width
