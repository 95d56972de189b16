"""Verification: which drafted path is committed, and the token the target adds after it. Pure.

- coupled: the target's own choice (arg-max of logits + shared noise; at T = 0 the arg-max) is
  followed as long as it is a drafted child; exact whatever the tree (algorithms.md A1, A3, A7).
- rejection: token rejection sampling on a chain (A2; Leviathan et al. 2023).
- block: block verification on a chain (A5; Sun et al. 2024, arXiv 2403.10444).

The last two need the distribution each token was sampled from (``DraftTree.probs``); a proposal
without it is a point mass (q one-hot), which both rules verify exactly too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.sampling import (
    NOTHING,
    RowContext,
    choose,
    draw,
    is_plain_greedy,
    no_choice,
    probabilities,
    settled,
)
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Verifier
from draftsmith.kernels.noise import ACCEPT, RESIDUAL, uniform
from draftsmith.kernels.top_k import top_k


@dataclass(frozen=True, slots=True)
class Verdict:
    """``path``: accepted node indices from the root's child downwards; ``bonus``: the token after
    them.
    """

    path: tuple[int, ...]
    bonus: int

    def tokens(self, tree: DraftTree) -> tuple[int, ...]:
        return (*(tree.tokens[node] for node in self.path), self.bonus)


def verify(
    logits: torch.Tensor,
    tree: DraftTree,
    context: RowContext,
    *,
    eos_ids: Sequence[int] = (),
    verifier: Verifier = "coupled",
) -> Verdict:
    """Judge one tree. ``logits`` ``[1 + n, V]``: row 0 follows the root, row ``i + 1`` follows node
    ``i``. Raises EngineInputError where a row to be chosen from leaves nothing to choose (rows of
    rejected nodes may hold what they like), and for a tree that the verifier cannot judge.
    """
    if verifier == "coupled" or context.sampling.temperature == 0.0 or len(tree) == 0:
        if is_plain_greedy(context):
            return settled_verdict(walk(best_tokens(logits), tree), logits, tree, context)
        return _walk_lazily(logits, tree, context, eos_ids)
    if not tree.is_chain:
        raise EngineInputError(
            f"verifier {verifier} needs a chain, the draft is a tree of {len(tree)} nodes;"
            " use coupled"
        )
    contexts = [
        replace(context, path=(*context.path, *tree.tokens[:depth]))
        for depth in range(len(tree) + 1)
    ]
    p = probabilities(logits, contexts, eos_ids=eos_ids)
    undefined = p[:, 0].isnan().tolist()
    size = undefined.index(True) if True in undefined else len(tree)  # drafts before such a row
    q = proposal_probabilities(tree, p.shape[-1], p.device)
    seed, root = context.sampling.seed, context.root_position
    uniforms = [uniform(seed, root, index=i, stream=ACCEPT) for i in range(size)]
    rule = reject_tokens if verifier == "rejection" else verify_block
    kept, weights = rule(p[: size + 1], q[:size], tree.tokens[:size], uniforms)
    bonus = draw(weights, uniform(seed, root, stream=RESIDUAL))
    return settled_verdict(Verdict(tuple(range(kept)), bonus), logits, tree, context)


def best_tokens(logits: torch.Tensor) -> list[int]:
    """The greedy token after each row of ``logits`` ``[N, V]``: the lowest id among the largest;
    NOTHING for a row that leaves none to choose.
    """
    best: list[int] = settled(logits, top_k(logits, 1))[:, 0].tolist()
    return best


def settled_verdict(
    verdict: Verdict, logits: torch.Tensor, tree: DraftTree, context: RowContext
) -> Verdict:
    """``verdict`` itself; EngineInputError when the row of ``logits`` ``[1 + n, V]`` that its bonus
    was to come from left nothing to choose.
    """
    if verdict.bonus != NOTHING:
        return verdict
    accepted = verdict.tokens(tree)[:-1]
    row = verdict.path[-1] + 1 if verdict.path else 0
    raise no_choice(logits[row], replace(context, path=(*context.path, *accepted)))


def walk(choices: Sequence[int], tree: DraftTree) -> Verdict:
    """Follow the target's choices (one a verified row, row 0 the root) through the tree."""
    child = {
        (parent, token): i
        for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    node = -1
    path: list[int] = []
    while True:
        token = choices[node + 1]
        following = child.get((node, token))
        if following is None:
            return Verdict(tuple(path), token)
        node = following
        path.append(node)


def _walk_lazily(
    logits: torch.Tensor, tree: DraftTree, context: RowContext, eos_ids: Sequence[int]
) -> Verdict:
    """As ``walk``, but noise and penalties are computed for visited rows only."""
    child = {
        (parent, token): i
        for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    node = -1
    path: list[int] = []
    here = context
    while True:
        (token,) = choose(logits[node + 1 : node + 2], [here], eos_ids=eos_ids)
        following = child.get((node, token))
        if following is None:
            return Verdict(tuple(path), token)
        node = following
        path.append(node)
        here = replace(here, path=(*here.path, token))


def proposal_probabilities(tree: DraftTree, vocab_size: int, device: torch.device) -> torch.Tensor:
    """``[n, V]`` float64: what each token was sampled from, one-hot for deterministic proposals."""
    if tree.probs is not None:
        return tree.probs.double()
    q = torch.zeros(len(tree), vocab_size, dtype=torch.float64, device=device)
    q[torch.arange(len(tree)), torch.tensor(tree.tokens)] = 1.0
    return q


def _residual(p: torch.Tensor, q: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """(scale * p - q)+, or p when rounding left no mass."""
    left = (scale * p - q).clamp(min=0.0)
    return left if float(left.sum()) > 0.0 else p


def reject_tokens(
    p: torch.Tensor, q: torch.Tensor, drafts: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, torch.Tensor]:
    """Token rejection (A2). ``p`` ``[n + 1, V]``, ``q`` ``[n, V]``. Returns how many drafts are
    kept and the weights that the next token is drawn from.
    """
    for i, (token, u) in enumerate(zip(drafts, uniforms, strict=True)):
        if u * float(q[i, token]) >= float(p[i, token]):
            return i, _residual(p[i], q[i])
    return len(drafts), p[len(drafts)]


def block_acceptance(
    p: torch.Tensor, q: torch.Tensor, drafts: Sequence[int]
) -> tuple[list[float], list[float]]:
    """(rho_0..rho_n, h_1..h_n) of block verification (A5)."""
    n = len(drafts)
    rho, h = [1.0], []
    for i in range(1, n + 1):
        token = drafts[i - 1]
        q_token = float(q[i - 1, token])
        ratio = float(p[i - 1, token]) / q_token if q_token > 0.0 else 0.0
        rho.append(min(1.0, rho[-1] * ratio))
        if i == n:
            h.append(rho[n])
            break
        mass = float((rho[i] * p[i] - q[i]).clamp(min=0.0).sum())
        below = mass + 1.0 - rho[i]
        h.append(mass / below if below > 0.0 else 1.0)
    return rho, h


def verify_block(
    p: torch.Tensor, q: torch.Tensor, drafts: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, torch.Tensor]:
    """Block verification (A5): the *largest* i with u_i <= h_i is kept. Shapes as in
    ``reject_tokens``.
    """
    rho, h = block_acceptance(p, q, drafts)
    kept = 0
    for i in range(len(drafts), 0, -1):
        if uniforms[i - 1] <= h[i - 1] and h[i - 1] > 0.0:
            kept = i
            break
    if kept == len(drafts):
        return kept, p[kept]
    return kept, _residual(p[kept], q[kept], rho[kept])
