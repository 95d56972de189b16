"""Best-first draft trees: one heap over path scores, whoever supplies the candidates.

Score of a node = product of the candidates' probabilities along its path, an estimate of its
acceptance (EAGLE-2, OPT-Tree, DDTree). Scores never rise along a path, so taking the best node that
is reachable, again and again, gives the connected tree with the largest sum of scores for *every*
budget at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[State]):
    """A possible child: its token, its probability given the parent (0..1), and what its own
    children are asked from.
    """

    token: int
    prob: float
    state: State


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """Nodes in the order taken: parents before children, siblings best first, every prefix the best
    tree of its size. ``scores`` are path probabilities; ``sum(scores)`` is the expected number of
    accepted tokens.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    scores: tuple[float, ...]


def best_first(
    root: State,
    candidates: Callable[[State], Iterable[Candidate[State]]],
    *,
    budget: int,
    depth: int,
    min_score: float = 0.0,
) -> ScoredTree:
    """Grow the tree of at most ``budget`` nodes and ``depth`` levels under ``root``.

    ``candidates`` is asked once per taken node; it limits the children (top-k) itself and must give
    distinct tokens. Nodes of score under ``min_score``, or of score zero, are left out. Equal
    scores go to the node nearer to the root, then to the one offered first. O((n + offered) log
    offered).
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    heap: list[tuple[float, int, int, int, int, State]] = []
    offered = 0

    def offer(state: State, parent: int, score: float, level: int) -> None:
        nonlocal offered
        for child in candidates(state):
            path = score * child.prob
            if path > 0.0 and path >= min_score:
                heapq.heappush(heap, (-path, level, offered, parent, child.token, child.state))
                offered += 1

    if budget > 0 and depth > 0:
        offer(root, -1, 1.0, 1)
    while heap and len(tokens) < budget:
        negative, level, _, parent, token, state = heapq.heappop(heap)
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        scores.append(-negative)
        if level < depth and len(tokens) < budget:
            offer(state, node, -negative, level + 1)
    return ScoredTree(tuple(tokens), tuple(parents), tuple(scores))
