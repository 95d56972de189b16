"""Growing draft trees with a model: one batched forward a level, for all slots together.

Chains and static trees put the ranked candidates of each node on a template. Dynamic trees expand
the ``tree_top_k`` best nodes of a level into ``tree_top_k`` children each and finally keep the
``tree_budget`` best of all candidates (EAGLE-2). A node's probability is its softmax share of the
*scores*: the processed logits, plus the request's shared noise at T > 0, so that siblings are the
drafter's next guesses of the very choice to come (algorithms.md A7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from draftsmith.engine.drafters.shapes import DynamicShape, end_ids, level_widths
from draftsmith.engine.sampling import RowContext, probabilities, sample_draft, scores
from draftsmith.engine.trees.dynamic import Candidate, best_first
from draftsmith.engine.trees.static import TreeTemplate
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import RowBatch, SlotView


class DraftForward(Protocol):
    """The model side of drafting: raw logits ``[N, V or Vd]``, fp32, a row per node asked for."""

    def roots(self, views: Sequence[SlotView]) -> torch.Tensor:
        """Put the root of every view at draft row 0 of its slot; logits after it, ``[len(views),
        Vd]``.
        """
        ...

    def nodes(self, rows: RowBatch) -> torch.Tensor:
        """Logits after the real rows of ``rows``, slot by slot: ``[sum(widths), Vd]``."""
        ...

    def room(self, slot: int) -> int:
        """Draft rows that fit behind the committed ones of ``slot``, the root's included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """How to draft. ``token_ids`` are the draft head's ids (None = the whole vocabulary of
    ``vocab_size``); ``sampled`` draws tokens from the warped distribution and returns it, for
    rejection and block verification.
    """

    shape: TreeTemplate | DynamicShape
    vocab_size: int
    eos_ids: tuple[int, ...]
    token_ids: torch.Tensor | None = None
    stop_threshold: float = 0.0
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class Ranked:
    """Candidates after one row, best first; ``confident`` = the drafter's raw top-1 probability
    passes.
    """

    tokens: list[int]
    log_probs: list[float]
    confident: bool
    probs: torch.Tensor | None = None  # [V] fp32


@dataclass(slots=True)
class Growth:
    """One view's tree while it grows. Node -1 is the root; ``rows[node]`` are the draft rows of its
    path.
    """

    view: SlotView
    ends: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    log_scores: list[float] = field(default_factory=list)
    template_nodes: list[int] = field(default_factory=list)
    rows: dict[int, tuple[int, ...]] = field(default_factory=dict)
    probs: list[torch.Tensor] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [-1])

    def path(self, node: int) -> tuple[int, ...]:
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tuple(reversed(tokens))

    def add(self, token: int, parent: int, log_score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.log_scores.append(log_score)
        return len(self.tokens) - 1

    def context(self, node: int) -> RowContext:
        view = self.view
        return RowContext(view.sampling, view.prompt_len, view.tokens, self.path(node))


@dataclass(frozen=True, slots=True)
class Expanded:
    """A tree per view, and the growths that tell which nodes were forwarded at which draft rows."""

    trees: list[DraftTree]
    growths: list[Growth]


def expand(views: Sequence[SlotView], forward: DraftForward, plan: Expansion) -> Expanded:
    """Draft for all views, one forward a level."""
    growths = [Growth(view, end_ids(view.sampling, plan.eos_ids)) for view in views]
    active = [growth for growth in growths if growth.view.budget > 0]
    if isinstance(plan.shape, TreeTemplate) and len(plan.shape) == 0:
        active = []
    if active:
        logits = forward.roots([growth.view for growth in active])
        for growth in active:
            growth.rows[-1] = (0,)
    offset = 1
    widths = iter(level_widths(plan.shape))
    while active:
        ranked = iter(_rank(logits, active, plan))
        for growth in active:
            _grow(growth, [next(ranked) for _ in growth.frontier], plan)
        for growth in active:
            growth.frontier = growth.frontier[: max(0, forward.room(growth.view.slot) - offset)]
        active = [growth for growth in active if growth.frontier]
        if active:
            rows = _level_rows(active, offset)
            logits = forward.nodes(rows)
            offset += next(widths)
    return Expanded([_finish(growth, plan) for growth in growths], growths)


def _rank(logits: torch.Tensor, active: Sequence[Growth], plan: Expansion) -> list[Ranked]:
    """Candidates of every frontier node, with one transfer to the host."""
    contexts = [growth.context(node) for growth in active for node in growth.frontier]
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
    top_values, columns = _top(values, min(count, values.shape[-1]))
    ids = columns if plan.token_ids is None else plan.token_ids[columns]
    ranked: list[Ranked] = []
    for i, (row, row_ids) in enumerate(zip(top_values.tolist(), ids.tolist(), strict=True)):
        kept = sum(value > -np.inf for value in row)
        norm = 0.0 if log_norm is None else log_norm[i]
        log_probs = [min(0.0, value - norm) for value in row[:kept]]
        ranked.append(Ranked(row_ids[:kept], log_probs, confident[i]))
    return ranked


def _top(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` largest per row; the first is always the arg-max with the lowest column at
    ties.
    """
    if count == 1:
        best = values.max(dim=-1, keepdim=True)
        return best.values, best.indices
    top = values.topk(count, dim=-1)
    first = values.argmax(dim=-1, keepdim=True)
    # Bring the arg-max to the front; where ties kept it out of the top it replaces the last.
    is_first = top.indices == first
    is_first[:, -1] |= ~is_first.any(-1)
    order = (~is_first).long().argsort(dim=-1, stable=True)
    columns = top.indices.gather(-1, order)
    columns[:, 0] = first[:, 0]
    return values.gather(-1, columns), columns


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


def _grow(growth: Growth, ranked: Sequence[Ranked], plan: Expansion) -> None:
    """Add the children of the frontier and choose the next frontier."""
    if isinstance(plan.shape, TreeTemplate):
        _grow_template(growth, ranked, plan.shape)
    else:
        _grow_dynamic(growth, ranked, plan.shape)


def _grow_template(growth: Growth, ranked: Sequence[Ranked], template: TreeTemplate) -> None:
    frontier: list[int] = []
    for node, row in zip(growth.frontier, ranked, strict=True):
        template_node = growth.template_nodes[node] if node >= 0 else -1
        for child in template.children[template_node + 1]:
            rank = template.ranks[child]
            if rank >= len(row.tokens) or len(growth.tokens) >= growth.view.budget:
                continue
            token = row.tokens[rank]
            new = growth.add(token, node, 0.0)
            growth.template_nodes.append(child)
            if row.probs is not None:
                growth.probs.append(row.probs)
            if row.confident and token not in growth.ends and template.children[child + 1]:
                frontier.append(new)
    full = len(growth.tokens) >= growth.view.budget
    growth.frontier = [] if full else frontier


def _grow_dynamic(growth: Growth, ranked: Sequence[Ranked], shape: DynamicShape) -> None:
    level = len(growth.rows[growth.frontier[0]])
    found: list[int] = []
    for node, row in zip(growth.frontier, ranked, strict=True):
        base = growth.log_scores[node] if node >= 0 else 0.0
        for token, log_prob in zip(row.tokens, row.log_probs, strict=True):
            new = growth.add(token, node, base + log_prob)
            if row.confident and token not in growth.ends:
                found.append(new)
    if level >= shape.depth:
        growth.frontier = []
        return
    # A child scores at most what its parent does: below the last kept score nothing can get in.
    budget = min(shape.budget, growth.view.budget)
    kept = sorted(growth.log_scores, reverse=True)[:budget]
    floor = kept[-1] if len(kept) == budget else -np.inf
    found = [node for node in found if growth.log_scores[node] >= floor]
    found.sort(key=lambda node: -growth.log_scores[node])
    growth.frontier = found[: shape.top_k]


def _level_rows(active: Sequence[Growth], offset: int) -> RowBatch:
    """One row per frontier node at draft rows ``offset ...``; each sees the rows of its path and
    itself.
    """
    widths = tuple(len(growth.frontier) for growth in active)
    width = max(widths)
    token_ids = np.zeros((len(active), width), dtype=np.int64)
    positions = np.zeros((len(active), width), dtype=np.int64)
    visible = np.zeros((len(active), width, offset + width), dtype=bool)
    for b, growth in enumerate(active):
        root = len(growth.view.tokens) - 1
        for i, node in enumerate(growth.frontier):
            path = (*growth.rows[growth.parents[node]], offset + i)
            growth.rows[node] = path
            token_ids[b, i] = growth.tokens[node]
            positions[b, i] = root + len(path) - 1
            visible[b, i, list(path)] = True
    chain = width == 1 and bool(visible.all())
    return RowBatch(
        slots=tuple(growth.view.slot for growth in active),
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        widths=widths,
        offset=offset,
        visible=None if chain else torch.from_numpy(visible),
    )


def _finish(growth: Growth, plan: Expansion) -> DraftTree:
    if isinstance(plan.shape, TreeTemplate):
        probs = torch.stack(growth.probs) if growth.probs else None
        return DraftTree(tuple(growth.tokens), tuple(growth.parents), probs)
    children: list[list[int]] = [[] for _ in range(len(growth.tokens) + 1)]
    for node, parent in enumerate(growth.parents):
        children[parent + 1].append(node)

    def candidates(node: int) -> list[Candidate[int]]:
        base = growth.log_scores[node] if node >= 0 else 0.0
        return [
            Candidate(growth.tokens[child], float(np.exp(growth.log_scores[child] - base)), child)
            for child in children[node + 1]
        ]

    budget = min(plan.shape.budget, growth.view.budget)
    best = best_first(-1, candidates, budget=budget, depth=plan.shape.depth)
    return DraftTree(best.tokens, best.parents)
