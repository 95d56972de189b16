"""A target that is a table: its logits depend on the last token alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fakes import FakeTarget

from draftsmith.engine.cache import KVCache
from draftsmith.engine.types import HeadRows, Hidden, RowBatch

VOCAB = 64
END = 1


class TableModel(FakeTarget):
    """A target whose logits after a token are a row of a table. ``wobble`` is added to the logits
    of ids of odd number in forwards of several rows: a model that is not row-stable.
    """

    def __init__(self, table: torch.Tensor, wobble: float = 0.0) -> None:
        super().__init__(vocab_size=table.shape[1], eos_token_ids=(END,))
        self._table = table
        self._wobble = wobble

    def forward(
        self,
        rows: RowBatch,
        cache: KVCache,
        *,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> Hidden:
        several = torch.full_like(rows.token_ids, int(rows.token_ids.shape[1] > 1))
        return Hidden(torch.stack([rows.token_ids, several], dim=-1))

    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        logits = self._table[hidden[:, 0]].clone()
        logits[:, 1::2] += self._wobble * hidden[:, 1:]
        return logits


def table_of(rows: dict[int, dict[int, float]], size: int = VOCAB) -> torch.Tensor:
    """Row ``token`` holds the given logits, -10 elsewhere; a token without a row leads to END."""
    table = torch.full((size, size), -10.0)
    table[:, END] = 0.0
    for token, logits in rows.items():
        table[token, END] = -10.0
        for following, value in logits.items():
            table[token, following] = value
    return table
