"""From the drafter's hidden rows to ranked candidates, or to one sampled token and its law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftsmith.engine.drafters.plan import Expansion
from draftsmith.engine.model.heads import top_of
from draftsmith.engine.sampling import (
    RowContext,
    is_plain_greedy,
    probabilities,
    sample_draft,
    scores,
)
from draftsmith.engine.trees.static import TreeTemplate
from draftsmith.kernels.draft_head import TopLogits


@dataclass(frozen=True, slots=True)
class Ranked:
    """Candidates after one row, best first; ``confident`` = the drafter's raw top-1 probability
    passes.
    """

    tokens: list[int]
    log_probs: list[float]
    confident: bool
    probs: torch.Tensor | None = None  # [V] fp32


def rank(hidden: torch.Tensor, contexts: Sequence[RowContext], plan: Expansion) -> list[Ranked]:
    """Candidates after each row of ``hidden`` ``[N, H]``, the drafter's last layer; ``contexts``
    tell what precedes them. Where raw logits decide, only the best of them are made.
    """
    if not plan.sampled and all(is_plain_greedy(context) for context in contexts):
        return _best(hidden, plan)
    logits = plan.model.head(hidden, plan.head)
    confident = [True] * len(contexts)
    if plan.stop_threshold > 0.0:
        confident = _passes(logits.max(dim=-1).values, logits.logsumexp(-1), plan)
    if plan.sampled:
        return _sample(logits, contexts, confident, plan)
    eos_ids = plan.model.info.eos_token_ids
    values = scores(logits, contexts, eos_ids=eos_ids, token_ids=plan.token_ids)
    top = top_of(values, _num_ranks(plan), with_log_sum=_is_dynamic(plan))
    return _candidates(top, confident, plan)


def _best(hidden: torch.Tensor, plan: Expansion) -> list[Ranked]:
    """The best of the raw logits, none of the others made."""
    with_log_sum = _is_dynamic(plan) or plan.stop_threshold > 0.0
    top = plan.model.top(hidden, _num_ranks(plan), plan.head, with_log_sum=with_log_sum)
    confident = [True] * len(hidden)
    if plan.stop_threshold > 0.0 and top.log_sums is not None:
        confident = _passes(top.values[:, 0], top.log_sums, plan)
    return _candidates(top, confident, plan)


def _is_dynamic(plan: Expansion) -> bool:
    return not isinstance(plan.shape, TreeTemplate)


def _num_ranks(plan: Expansion) -> int:
    """Candidates wanted after a row."""
    shape = plan.shape
    count = shape.num_ranks if isinstance(shape, TreeTemplate) else shape.top_k
    return min(count, plan.num_ids)


def _passes(highest: torch.Tensor, log_sums: torch.Tensor, plan: Expansion) -> list[bool]:
    """Whether the best raw logit's share of each row reaches the stop threshold."""
    shares: list[bool] = ((highest - log_sums).exp() >= plan.stop_threshold).tolist()
    return shares


def _candidates(top: TopLogits, confident: Sequence[bool], plan: Expansion) -> list[Ranked]:
    """Scores as shares of their row in dynamic trees; else the scores themselves serve."""
    ids = top.columns if plan.token_ids is None else plan.token_ids[top.columns]
    norms = [0.0] * len(confident)
    if _is_dynamic(plan) and top.log_sums is not None:
        norms = top.log_sums.tolist()
    ranked: list[Ranked] = []
    rows = zip(top.values.tolist(), ids.tolist(), norms, confident, strict=True)
    for values, row_ids, norm, sure in rows:
        kept = sum(value > -np.inf for value in values)
        log_probs = [min(0.0, value - norm) for value in values[:kept]]
        ranked.append(Ranked(row_ids[:kept], log_probs, sure))
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
    eos_ids = plan.model.info.eos_token_ids
    q = probabilities(logits, contexts, eos_ids=eos_ids, token_ids=plan.token_ids)
    ranked: list[Ranked] = []
    for row, context, sure in zip(q, contexts, confident, strict=True):
        column = sample_draft(row, context)
        if plan.token_ids is None:
            token, full = column, row
        else:
            token = int(plan.token_ids[column])
            full = torch.zeros(plan.model.info.vocab_size, dtype=row.dtype, device=row.device)
            full[plan.token_ids] = row
        ranked.append(Ranked([token], [0.0], sure, full))
    return ranked
