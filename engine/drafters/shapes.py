"""What drafters share: checks of configuration values, templates of chain and static trees, end
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.trees.static import (
    MAX_NODES,
    TreeTemplate,
    chain_template,
    from_acceptance,
    from_branching,
)
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Sampling, SpecConfig, TreeShape

MAX_BLOCK = 64
# P(the child of rank b is the accepted one) before anything was measured: a small drafter's usual
# profile.
PRIOR_RANK_ACCEPTANCE = (0.6, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)


@dataclass(frozen=True, slots=True)
class DynamicShape:
    depth: int
    top_k: int
    budget: int


def level_widths(shape: TreeTemplate | DynamicShape) -> tuple[int, ...]:
    """Most nodes forwarded at depth 1, 2, ...; the rows of a level start at the same place in every
    slot, so that neighbours cannot move them.
    """
    if isinstance(shape, DynamicShape):
        return (min(shape.top_k, shape.budget),) * (shape.depth - 1)
    widths = [0] * max(shape.depths, default=0)
    for node, depth in enumerate(shape.depths):
        widths[depth - 1] += bool(shape.children[node + 1])
    return tuple(widths[:-1])


def require_int(name: str, value: object, low: int, high: int) -> int:
    """``value`` if it is a whole number within ``low..high``; EngineInputError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise EngineInputError(f"{name} is {value!r}; give a whole number from {low} to {high}")
    return value


def require_share(name: str, value: float) -> float:
    """``value`` if it is within 0..1; EngineInputError otherwise."""
    if not 0.0 <= value <= 1.0:
        raise EngineInputError(f"{name} is {value}; give a number from 0 to 1")
    return value


def require_shape(config: SpecConfig, allowed: Sequence[TreeShape]) -> None:
    """Refuse tree shapes that the drafter cannot draw, and trees under chain-only verifiers."""
    if config.tree not in allowed:
        raise UnsupportedError(
            f"drafter {config.drafter} does not draw {config.tree} trees;"
            f" use {' or '.join(allowed)}"
        )
    if config.tree != "chain" and config.verifier != "coupled":
        raise UnsupportedError(
            f"verifier {config.verifier} needs a chain, the tree is {config.tree};"
            " use tree chain or verifier coupled"
        )
    require_int("block_size", config.block_size, 1, MAX_BLOCK)
    if config.tree != "chain":
        require_int("tree_budget", config.tree_budget, 1, MAX_NODES)
        require_int("tree_top_k", config.tree_top_k, 1, MAX_NODES)


def make_shape(
    config: SpecConfig, rank_acceptance: tuple[float, ...], *, max_ranks: int | None = None
) -> TreeTemplate | DynamicShape:
    """The shape of a drafter that ranks candidates by running a model."""
    if config.tree == "dynamic":
        return DynamicShape(config.block_size, config.tree_top_k, config.tree_budget)
    return make_template(config, rank_acceptance, max_ranks=max_ranks)


def make_template(
    config: SpecConfig, rank_acceptance: tuple[float, ...], *, max_ranks: int | None = None
) -> TreeTemplate:
    """The chain or static tree that ``config`` asks for. Without branching factors the dynamic
    programme draws it from ``rank_acceptance`` (a prior where that is empty),
    ``block_size`` deep.
    """
    if config.tree == "chain":
        return chain_template(config.block_size)
    if config.branching:
        template = from_branching(config.branching)
        if max_ranks is not None and template.num_ranks > max_ranks:
            raise EngineInputError(
                f"branching {config.branching} needs {template.num_ranks} candidates a node,"
                f" drafter {config.drafter} keeps {max_ranks}; lower the factor or keep more"
            )
        return template
    rates = (rank_acceptance or PRIOR_RANK_ACCEPTANCE)[:max_ranks]
    return from_acceptance(rates, budget=config.tree_budget, depth=config.block_size)


def fill_template(
    template: TreeTemplate,
    budget: int,
    root_token: int,
    candidates: Callable[[int, int], Sequence[int]],
    ends: frozenset[int],
) -> DraftTree:
    """Put tokens on the first nodes of ``template``, at most ``budget``. ``candidates(token,
    depth)`` ranks the children of a node at ``depth`` (the root 0); a node whose rank it lacks is
    left out with all below it, and nothing is drawn below a token of ``ends``.
    """
    tokens: list[int] = []
    parents: list[int] = []
    level = [
        (-1, root_token)
    ]  # (template node, token), with its place in the drafted tree beside it
    places = [-1]
    depth = 0
    while level and len(tokens) < budget:
        below: list[tuple[int, int]] = []
        below_places: list[int] = []
        for (node, token), place in zip(level, places, strict=True):
            children = template.children[node + 1]
            if not children or token in ends and node >= 0:
                continue
            ranked = candidates(token, depth)
            for child in children:
                rank = template.ranks[child]
                if rank >= len(ranked) or len(tokens) >= budget:
                    continue
                below.append((child, ranked[rank]))
                below_places.append(len(tokens))
                tokens.append(ranked[rank])
                parents.append(place)
        level, places = below, below_places
        depth += 1
    return DraftTree(tuple(tokens), tuple(parents))


def end_ids(sampling: Sampling, eos_ids: Sequence[int]) -> frozenset[int]:
    """Tokens that end the request, after which drafting is pointless. Before ``min_tokens`` they
    cannot be emitted at all, so a draft that holds one ends there too.
    """
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | frozenset(eos_ids)
