"""Static draft trees: templates from branching factors or from the Sequoia dynamic programme.

Source of the programme: Sequoia (Chen et al. 2024); ``F(m, l, b)`` is the best expected number of
tokens of a tree of ``m`` nodes (root included) whose root has ``b`` children, ``l`` levels below
the root at most. ``a_b`` is P(the child of rank b is the accepted one), so the ranks of one node
sum to at most 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from draftsmith.engine.errors import EngineInputError

MAX_NODES = 1024


@dataclass(frozen=True)
class TreeTemplate:
    """A tree without tokens: ``parents[i]`` (-1 the root) and ``ranks[i]``, the place of node ``i``
    among the drafter's candidates for its parent (0 best). Breadth-first, so any prefix is itself a
    tree.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.parents) != len(self.ranks):
            raise EngineInputError(
                f"tree template has {len(self.parents)} parents but {len(self.ranks)} ranks"
            )
        for index, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            if not -1 <= parent < index or rank < 0:
                raise EngineInputError(
                    f"template node {index} has parent {parent} and rank {rank};"
                    " parents precede their children and ranks start at 0"
                )
        if list(self.parents) != sorted(self.parents):
            raise EngineInputError("tree template is not breadth-first: sort nodes by their parent")
        if len(set(zip(self.parents, self.ranks, strict=True))) != len(self.parents):
            raise EngineInputError("tree template repeats a rank among siblings")

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of the root at index 0, of node ``i`` at ``i + 1``."""
        lists: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for index, parent in enumerate(self.parents):
            lists[parent + 1].append(index)
        return tuple(tuple(nodes) for nodes in lists)

    @cached_property
    def num_ranks(self) -> int:
        """Candidates that a drafter must rank per node."""
        return max(self.ranks, default=-1) + 1


def chain_template(length: int) -> TreeTemplate:
    return TreeTemplate(tuple(range(-1, length - 1)), (0,) * length)


def from_branching(branching: Sequence[int]) -> TreeTemplate:
    """``(4, 2, 1)``: 4 children of the root, 2 of each of those, 1 of each of those: 20 nodes."""
    if not branching or any(factor < 1 for factor in branching):
        raise EngineInputError(
            f"branching {tuple(branching)}: give at least one factor, each 1 or more"
        )
    total, width = 0, 1
    for factor in branching:
        width *= factor
        total += width
    if total > MAX_NODES:
        raise EngineInputError(
            f"branching {tuple(branching)} makes {total} nodes, at most {MAX_NODES} are allowed;"
            " lower a factor or drop a level"
        )
    parents: list[int] = []
    ranks: list[int] = []
    level = [-1]
    for factor in branching:
        start = len(parents)
        for parent in level:
            parents.extend([parent] * factor)
            ranks.extend(range(factor))
        level = list(range(start, len(parents)))
    return TreeTemplate(tuple(parents), tuple(ranks))


def expected_tokens(template: TreeTemplate, rank_acceptance: Sequence[float]) -> float:
    """1 (the bonus token) plus every node's path acceptance; ranks past the table count as 0."""
    paths: list[float] = []
    for parent, rank in zip(template.parents, template.ranks, strict=True):
        own = rank_acceptance[rank] if rank < len(rank_acceptance) else 0.0
        paths.append(own * (1.0 if parent < 0 else paths[parent]))
    return 1.0 + sum(paths)


class TreeProgramme:
    """The tables of the dynamic programme for every node count up to ``budget`` (root excluded),
    every depth up to ``depth`` and up to ``len(rank_acceptance)`` children a node. O(budget^2 *
    depth * ranks), vectorised over the split of nodes.
    """

    def __init__(self, rank_acceptance: Sequence[float], *, budget: int, depth: int) -> None:
        _check_programme(rank_acceptance, budget, depth)
        self._budget = budget
        size = budget + 1  # nodes with the root
        ranks = len(rank_acceptance)
        # _best[l][m]: max over b of F(m, l, b); _count[l][m]: that b;
        # _split[l][b][m]: nodes left of child b.
        self._best = np.full((depth + 1, size + 1), -np.inf)
        self._best[:, 1] = 1.0
        self._count = np.zeros((depth + 1, size + 1), dtype=np.int64)
        self._split = np.zeros((depth + 1, ranks + 1, size + 1), dtype=np.int64)
        for level in range(1, depth + 1):
            previous = np.full(size + 1, -np.inf)
            previous[1] = 1.0
            for rank in range(1, ranks + 1):
                below = self._best[level - 1, 1:]  # child subtrees of 1.. nodes
                gain = np.full_like(below, -np.inf)
                np.multiply(rank_acceptance[rank - 1], below, out=gain, where=np.isfinite(below))
                current = np.full(size + 1, -np.inf)
                for nodes in range(2, size + 1):
                    # y nodes on the left, nodes - y in the new child's subtree
                    sums = previous[1:nodes] + gain[nodes - 2 :: -1]
                    left = int(np.argmax(sums))
                    current[nodes] = sums[left]
                    self._split[level, rank, nodes] = left + 1
                better = current > self._best[level]
                self._best[level, better] = current[better]
                self._count[level, better] = rank
                previous = current

    def value(self, nodes: int, depth: int) -> float:
        """Most expected tokens with exactly ``nodes`` drafted nodes; -inf where no such tree
        exists.
        """
        return float(self._best[depth, nodes + 1])

    def template(self, nodes: int, depth: int) -> TreeTemplate:
        """The tree of at most ``nodes`` nodes and ``depth`` levels with the most expected tokens;
        of equal ones the smallest.
        """
        row = self._best[depth, 1 : nodes + 2]
        best = int(np.argmax(row >= row.max() - 1e-12)) + 1
        parents: list[int] = []
        ranks: list[int] = []
        queue: list[tuple[int, int, int]] = [
            (-1, best, depth)
        ]  # node, nodes of its subtree, levels below
        for node, size, level in queue:  # grows while it is read: breadth-first
            for rank, child_size in enumerate(self._children(size, level)):
                queue.append((len(parents), child_size, level - 1))
                parents.append(node)
                ranks.append(rank)
        return TreeTemplate(tuple(parents), tuple(ranks))

    def _children(self, size: int, level: int) -> list[int]:
        """Subtree sizes of the root's children, rank 0 first."""
        sizes: list[int] = []
        for rank in range(int(self._count[level, size]), 0, -1):
            left = int(self._split[level, rank, size])
            sizes.append(size - left)
            size = left
        return sizes[::-1]


def from_acceptance(rank_acceptance: Sequence[float], *, budget: int, depth: int) -> TreeTemplate:
    """The best tree of at most ``budget`` drafted nodes and ``depth`` levels."""
    return TreeProgramme(rank_acceptance, budget=budget, depth=depth).template(budget, depth)


@dataclass(frozen=True, slots=True)
class HardwareChoice:
    """A tree chosen for a machine, its expected tokens a step and the step's seconds."""

    template: TreeTemplate
    expected_tokens: float
    step_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.expected_tokens / self.step_s


def for_hardware(
    rank_acceptance: Sequence[float],
    verify_s: Mapping[int, float],
    *,
    draft_level_s: float,
    depth: int,
) -> HardwareChoice:
    """The tree with the most expected tokens a second, given measured seconds of a verify step by
    drafted node count (0 = no speculation) and of one drafting level; a tree of ``d`` levels drafts
    ``d`` times.
    """
    if not verify_s or any(nodes < 0 or not seconds > 0 for nodes, seconds in verify_s.items()):
        raise EngineInputError(
            f"verify times {dict(verify_s)}: give positive seconds for node counts of 0 or more"
        )
    if not draft_level_s >= 0:
        raise EngineInputError(f"draft level time {draft_level_s} s is negative; measure it again")
    programme = TreeProgramme(rank_acceptance, budget=max(max(verify_s), 1), depth=depth)
    best: HardwareChoice | None = None
    for nodes, seconds in sorted(verify_s.items()):
        for levels in range(min(depth, nodes) + 1) if nodes else (0,):
            template = programme.template(nodes, levels)
            used = max(template.depths, default=0)
            choice = HardwareChoice(
                template,
                expected_tokens(template, rank_acceptance),
                seconds + used * draft_level_s,
            )
            if best is None or choice.tokens_per_s > best.tokens_per_s:
                best = choice
    assert best is not None  # verify_s is not empty
    return best


def _check_programme(rank_acceptance: Sequence[float], budget: int, depth: int) -> None:
    if not 1 <= budget <= MAX_NODES:
        raise EngineInputError(f"tree budget {budget} is outside 1..{MAX_NODES} nodes")
    if depth < 1:
        raise EngineInputError(f"tree depth {depth} must be 1 or more")
    if not rank_acceptance or any(not 0 <= rate <= 1 for rate in rank_acceptance):
        raise EngineInputError(
            f"rank acceptance {tuple(rank_acceptance)}: give at least one rate, each in 0..1"
        )
    if sum(rank_acceptance) > 1 + 1e-9:
        raise EngineInputError(
            f"rank acceptance sums to {sum(rank_acceptance):.4f}, above 1; ranks exclude each other"
        )
