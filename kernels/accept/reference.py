"""Plain torch form of verification: one sequence after the other, every rule written out.

Equal to ``draftsmith.engine.verify`` on the same rows; the arithmetic of the sampled rules is
float64.
"""

from __future__ import annotations

import torch

from draftsmith.kernels.noise import ACCEPT, RESIDUAL, gumbel, uniform

NOTHING = -1  # in place of a token: the row leaves nothing to choose


def choose(row: torch.Tensor, temperature: float, seed: int, position: int) -> int:
    """The lowest column among the best of ``row / temperature + noise`` (T = 0: of ``row``)."""
    scores = row.float()
    if temperature > 0.0:
        noise = gumbel(seed, position, scores.numel())
        scores = scores / temperature + noise.to(scores.device)
    best = int(scores.argmax())
    return best if float(scores[best]) > -torch.inf else NOTHING


def walk(
    logits: torch.Tensor,
    tokens: list[int],
    parents: list[int],
    depths: list[int],
    temperature: float,
    seed: int,
    root_position: int,
) -> tuple[list[int], int]:
    """(accepted nodes, bonus) of one tree: the choices followed from the root down."""
    child = {(parents[row], tokens[row]): row for row in range(1, len(tokens))}
    path: list[int] = []
    row = 0
    while True:
        token = choose(logits[row], temperature, seed, root_position + depths[row])
        following = child.get((row, token))
        if following is None:
            return path, token
        row = following
        path.append(row - 1)


def draw(weights: torch.Tensor, u: float) -> int:
    """Index at ``u`` of the distribution function of ``weights`` ``[V]``, not normalised."""
    cumulative = weights.cumsum(-1)
    total = float(cumulative[-1])
    if not total > 0.0:
        return NOTHING
    index = int(torch.searchsorted(cumulative, u * total, right=True))
    if index < weights.numel() and weights[index] > 0:
        return index
    return int(weights.nonzero()[-1])


def residual(p: torch.Tensor, q: torch.Tensor, scale: float) -> torch.Tensor:
    """(scale * p - q)+, or p where that left no mass."""
    left = (scale * p - q).clamp(min=0.0)
    return left if float(left.sum()) > 0.0 else p


def reject_tokens(
    p: torch.Tensor, q: torch.Tensor, drafts: list[int], uniforms: list[float]
) -> tuple[int, torch.Tensor]:
    """Token rejection: (how many drafts are kept, weights of the next token)."""
    for i, (token, u) in enumerate(zip(drafts, uniforms, strict=True)):
        if u * float(q[i, token]) >= float(p[i, token]):
            return i, residual(p[i], q[i], 1.0)
    return len(drafts), p[len(drafts)]


def verify_block(
    p: torch.Tensor, q: torch.Tensor, drafts: list[int], uniforms: list[float]
) -> tuple[int, torch.Tensor]:
    """Block verification: the largest i with u_i <= h_i is kept."""
    kept, scale, rho = 0, 1.0, 1.0
    for i, (token, u) in enumerate(zip(drafts, uniforms, strict=True), 1):
        proposed = float(q[i - 1, token])
        rho = min(1.0, rho * (float(p[i - 1, token]) / proposed if proposed > 0.0 else 0.0))
        h = rho
        if i < len(drafts):
            mass = float((rho * p[i] - q[i]).clamp(min=0.0).sum())
            below = mass + 1.0 - rho
            h = mass / below if below > 0.0 else 1.0
        if u <= h and h > 0.0:
            kept, scale = i, rho
    if kept == len(drafts):
        return kept, p[kept]
    return kept, residual(p[kept], q[kept], scale)


def judge_chain(
    p: torch.Tensor, q: torch.Tensor | None, drafts: list[int], seed: int, position: int, rule: str
) -> tuple[list[int], int]:
    """(accepted nodes, bonus) of one chain. ``p`` ``[1 + n, V]``; ``q`` ``[>= n, V]``, None one-hot
    at the drafted tokens. A row of NaN ends the drafts that can be judged.
    """
    p = p.double()
    undefined = p[:, 0].isnan().tolist()
    size = undefined.index(True) if True in undefined else len(drafts)
    if q is None:
        q = torch.zeros(size, p.shape[1], dtype=torch.float64, device=p.device)
        q[torch.arange(size), torch.tensor(drafts[:size], dtype=torch.int64)] = 1.0
    uniforms = [uniform(seed, position, index=i, stream=ACCEPT) for i in range(size)]
    judge = reject_tokens if rule == "rejection" else verify_block
    kept, weights = judge(p[: size + 1], q[:size].double(), drafts[:size], uniforms)
    return list(range(kept)), draw(weights, uniform(seed, position, stream=RESIDUAL))
