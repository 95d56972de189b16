"""What every model does with its head: trimming to a draft vocabulary, the best of logits that were
made, and saying whether rows are stable.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.types import HeadRows
from draftsmith.kernels.draft_head import TopLogits
from draftsmith.kernels.panels import PackedWeight, Weight, pack_panels
from draftsmith.kernels.top_k import top_k


def gather_head_rows(
    weight: Weight, bias: torch.Tensor | None, token_ids: Sequence[int]
) -> HeadRows:
    """Copy the head's rows for ``token_ids``, sorted ascending and unique; in panels when the head
    is packed.

    Raises EngineInputError when none is given or one is outside the vocabulary.
    """
    ids = sorted(set(token_ids))
    vocab_size = weight.shape[0]
    if not ids:
        raise EngineInputError("a draft vocabulary needs at least one token id, got none")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise EngineInputError(
            f"draft vocabulary holds token id {wrong}, the target's ids are 0..{vocab_size - 1}"
        )
    index = torch.tensor(ids, dtype=torch.int64, device=weight.device)
    return HeadRows(
        token_ids=index,
        weight=(
            pack_panels(weight.rows(index)) if isinstance(weight, PackedWeight) else weight[index]
        ),
        bias=None if bias is None else bias.index_select(0, index),
    )


def top_of(logits: torch.Tensor, count: int, *, with_log_sum: bool) -> TopLogits:
    """``Model.top`` of a model that makes all ``logits`` ``[N, V]``, fp32, anyway."""
    columns = top_k(logits, count)
    log_sums = logits.logsumexp(-1) if with_log_sum else None
    return TopLogits(logits.gather(1, columns), columns, log_sums)


def kernels_row_stable(device: torch.device) -> bool:
    """Whether a row's bits are independent of the rows computed with it, on ``device``."""
    if device.type != "cpu":
        return False
    from draftsmith.kernels.backend import describe

    return describe().row_stable
