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

from draftsmith.engine.drafters.plan import Expansion
from draftsmith.engine.drafters.ranking import Ranked, rank
from draftsmith.engine.drafters.shapes import DynamicShape, end_ids, level_widths
from draftsmith.engine.sampling import RowContext
from draftsmith.engine.trees.dynamic import Candidate, best_first
from draftsmith.engine.trees.static import TreeTemplate
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import RowBatch, SlotView


class DraftForward(Protocol):
    """The model side of drafting: hidden rows ``[N, H]`` before the head, a row per node."""

    def roots(self, views: Sequence[SlotView]) -> torch.Tensor:
        """Put the root of every view at draft row 0 of its slot: ``[len(views), H]``."""
        ...

    def nodes(self, rows: RowBatch) -> torch.Tensor:
        """The real rows of ``rows``, slot by slot: ``[sum(widths), H]``."""
        ...

    def room(self, slot: int) -> int:
        """Draft rows that fit behind the committed ones of ``slot``, the root's included."""
        ...


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
    eos_ids = plan.model.info.eos_token_ids
    growths = [Growth(view, end_ids(view.sampling, eos_ids)) for view in views]
    active = [growth for growth in growths if growth.view.budget > 0]
    if isinstance(plan.shape, TreeTemplate) and len(plan.shape) == 0:
        active = []
    if active:
        hidden = forward.roots([growth.view for growth in active])
        for growth in active:
            growth.rows[-1] = (0,)
    offset = 1
    widths = iter(level_widths(plan.shape))
    while active:
        contexts = [growth.context(node) for growth in active for node in growth.frontier]
        ranked = iter(rank(hidden, contexts, plan))
        for growth in active:
            _grow(growth, [next(ranked) for _ in growth.frontier], plan)
        for growth in active:
            growth.frontier = growth.frontier[: max(0, forward.room(growth.view.slot) - offset)]
        active = [growth for growth in active if growth.frontier]
        if active:
            rows = _level_rows(active, offset)
            hidden = forward.nodes(rows)
            offset += next(widths)
    return Expanded([_finish(growth, plan) for growth in growths], growths)


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
            place = template.ranks[child]
            if place >= len(row.tokens) or len(growth.tokens) >= growth.view.budget:
                continue
            token = row.tokens[place]
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
