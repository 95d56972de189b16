"""The draft tree: tokens with parents. A chain is a tree without branches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftsmith.engine.errors import EngineInputError


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Drafted nodes under the root (the last committed token, not part of the tree).

    ``parents[i]`` is the index of node ``i``'s parent, -1 for a child of the root; parents come
    before their children. Siblings carry distinct tokens, best first. ``probs`` (``[n, V]`` fp32)
    holds the distribution each token was *sampled* from, after warping, for rejection and block
    verification; None for deterministic proposals.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    probs: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise EngineInputError(
                f"draft tree has {len(self.tokens)} tokens but {len(self.parents)} parents"
            )
        seen: set[tuple[int, int]] = set()
        for index, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not -1 <= parent < index:
                raise EngineInputError(
                    f"node {index} has parent {parent}; parents must precede their children"
                )
            if (parent, token) in seen:
                raise EngineInputError(f"node {index} repeats token {token} among its siblings")
            seen.add((parent, token))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    def depths(self) -> tuple[int, ...]:
        """Depth of each node; children of the root have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    def children(self, node: int) -> tuple[int, ...]:
        """Indices of the children of ``node`` (-1 is the root), in sibling order."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)

    def ancestors(self) -> np.ndarray:
        """``[n + 1, n + 1]`` bool over verified rows (row 0 the root): row sees column."""
        size = len(self.tokens) + 1
        mask = np.zeros((size, size), dtype=bool)
        mask[0, 0] = True
        for index, parent in enumerate(self.parents):
            mask[index + 1] = mask[parent + 1]
            mask[index + 1, index + 1] = True
        return mask

    def truncated(self, budget: int) -> DraftTree:
        """The first ``budget`` nodes; valid because parents precede children."""
        if len(self.tokens) <= budget:
            return self
        probs = None if self.probs is None else self.probs[:budget]
        return DraftTree(self.tokens[:budget], self.parents[:budget], probs)


EMPTY = DraftTree((), ())


def chain(tokens: tuple[int, ...], probs: torch.Tensor | None = None) -> DraftTree:
    return DraftTree(tokens, tuple(range(-1, len(tokens) - 1)), probs)
