"""From the drafter's logits to ranked candidates, or to one sampled token with its distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftsmith.engine.drafters.plan import Expansion
from draftsmith.engine.sampling import RowContext, probabilities, sample_draft, scores
from draftsmith.engine.trees.static import TreeTemplate
from draftsmith.kernels.top_k import top_k


@dataclass(frozen=True, slots=True)
class Ranked:
    """Candidates after one row, best first; ``confident`` = the drafter's raw top-1 probability
    passes.
    """

    tokens: list[int]
    log_probs: list[float]
    confident: bool
    probs: torch.Tensor | None = None  # [V] fp32


def rank(logits: torch.Tensor, contexts: Sequence[RowContext], plan: Expansion) -> list[Ranked]:
    """Candidates after each row of raw ``logits`` ``[N, V or Vd]``; ``contexts`` tell what precedes
    them.
    """
    if plan.stop_threshold > 0.0:
        top = logits.max(dim=-1).values
        confident = ((top - logits.logsumexp(-1)).exp() >= plan.stop_threshold).tolist()
    else:
        confident = [True] * len(contexts)
    if plan.sampled:
        return _sample(logits, contexts, confident, plan)
    values = scores(logits, contexts, eos_ids=plan.eos_ids, token_ids=plan.token_ids)
    if isinstance(plan.shape, TreeTemplate):
        count, log_norm = plan.shape.num_ranks, None
    else:
        count, log_norm = plan.shape.top_k, values.logsumexp(-1).tolist()
    columns = top_k(values, min(count, values.shape[-1]))
    top_values = values.gather(-1, columns)
    ids = columns if plan.token_ids is None else plan.token_ids[columns]
    ranked: list[Ranked] = []
    for i, (row, row_ids) in enumerate(zip(top_values.tolist(), ids.tolist(), strict=True)):
        kept = sum(value > -np.inf for value in row)
        norm = 0.0 if log_norm is None else log_norm[i]
        log_probs = [min(0.0, value - norm) for value in row[:kept]]
        ranked.append(Ranked(row_ids[:kept], log_probs, confident[i]))
    return ranked


def _sample(
    logits: torch.Tensor,
    contexts: Sequence[RowContext],
    confident: Sequence[bool],
    plan: Expansion,
) -> list[Ranked]:
    """One token per row drawn from the warped distribution, which is kept over the whole
    vocabulary.
    """
    q = probabilities(logits, contexts, eos_ids=plan.eos_ids, token_ids=plan.token_ids)
    ranked: list[Ranked] = []
    for row, context, sure in zip(q, contexts, confident, strict=True):
        column = sample_draft(row, context)
        if plan.token_ids is None:
            token, full = column, row
        else:
            token = int(plan.token_ids[column])
            full = torch.zeros(plan.vocab_size, dtype=row.dtype, device=row.device)
            full[plan.token_ids] = row
        ranked.append(Ranked([token], [0.0], sure, full))
    return ranked
