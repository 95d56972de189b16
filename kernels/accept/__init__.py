"""Verification of a ragged batch of draft trees: accepted paths, their lengths, the bonus tokens.

A sequence has one row for its root and one for each drafted node; row r of ``logits`` and of
``probabilities`` follows row r's token. Rules, as ``engine/verify.py`` has them:

coupled    c[r] = argmax_v logits[r, v] / T + Gumbel(seed, position + depth[r], v); at T = 0 the
           arg-max of the logits. From the root, the child whose token is c is followed as long as
           there is one; the last c is the bonus. Lowest id at ties.
rejection  on a chain: draft i is kept while u_i q_i(x_i) < p_i(x_i); the bonus is drawn from p
           after the last draft, else from (p_i - q_i)+.
block      on a chain: rho_i = min(1, rho_{i-1} p_i(x_i) / q_i(x_i)), Z_i = sum (rho_i p - q)+,
           h_i = Z_i / (Z_i + 1 - rho_i), h_n = rho_n; the largest i with u_i <= h_i is kept; the
           bonus from p, else from (rho_i p - q)+.
Sequences at T = 0 and such without drafts are judged by ``coupled`` under every rule. A row that
leaves nothing to choose (NaN, all minus infinity) gives the bonus NOTHING.

logits [R, V] fp32, bf16 or fp16: penalties applied, minus infinity at the tokens that a cut leaves
out; probabilities and proposal [R, V] fp32 or fp64 (proposal row r: what the draft after row r was
drawn from; None: one-hot). paths int32 [B, W - 1], -1 past each length; lengths and bonuses int32
[B].

Why Triton: one launch instead of some twenty, and no copy of the rows. Bytes: each row once, R V e
(sampled rules: p, and q of every row but each sequence's last); 16 R S of partial results, written
and read once (S splits of the vocabulary; fewer are read where paths are short); 20 R + 32 B + 4 B
W of indices and results. Floor: those over the memory's bandwidth. Noise is drawn for
blocks of the vocabulary that can still win.

Tolerance: coupled none where a division rounds to nearest. The sampled rules sum in fp64 by split:
a uniform number within 1e-12 of a threshold may fall on its other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from draftsmith.kernels.accept.cost import cost, sampled_cost
from draftsmith.kernels.accept.reference import NOTHING, judge_chain, walk
from draftsmith.kernels.backend import form_for
from draftsmith.kernels.errors import KernelInputError

Rule = Literal["coupled", "rejection", "block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """The draft trees of a batch. Rows of a sequence lie together, its root first, parents before
    children. Built by ``of``, or in place by whoever owns the buffers.
    """

    starts: torch.Tensor  # int32 [B + 1]: first row of each sequence
    sequences: torch.Tensor  # int32 [R]: the sequence of each row, -1 for padding
    tokens: torch.Tensor  # int32 [R]; the roots' are not read
    parents: torch.Tensor  # int32 [R]: row within the sequence, -1 for a root
    depths: torch.Tensor  # int32 [R]: 0 for a root
    width: int  # most rows of a sequence

    @classmethod
    def of(
        cls,
        trees: Sequence[tuple[Sequence[int], Sequence[int]]],
        device: torch.device | str = "cpu",
    ) -> Drafts:
        """From (tokens, parents) of each tree, nodes counted from 0 and -1 the root."""
        starts, sequences, tokens, parents, depths = [0], [], [], [], []
        for sequence, (nodes, above) in enumerate(trees):
            rows = [0]
            for index, parent in enumerate(above):
                if not -1 <= parent < index:
                    raise KernelInputError(
                        f"node {index} has parent {parent}; parents must precede their children"
                    )
                rows.append(rows[parent + 1] + 1)
            starts.append(starts[-1] + len(rows))
            sequences += [sequence] * len(rows)
            tokens += [-1, *nodes]
            parents += [-1, *(parent + 1 for parent in above)]
            depths += rows

        def as_tensor(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return cls(
            starts=as_tensor(starts),
            sequences=as_tensor(sequences),
            tokens=as_tensor(tokens),
            parents=as_tensor(parents),
            depths=as_tensor(depths),
            width=max((len(nodes) + 1 for nodes, _ in trees), default=1),
        )

    @property
    def num_rows(self) -> int:
        return self.sequences.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.starts.shape[0] - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What each sequence is chosen with."""

    seeds: torch.Tensor  # int64 [B]: the bits of the 64-bit seed
    positions: torch.Tensor  # int64 [B]: output position of the token after the root
    temperatures: torch.Tensor  # fp32 [B]

    @classmethod
    def of(
        cls,
        seeds: Sequence[int],
        positions: Sequence[int],
        temperatures: Sequence[float],
        device: torch.device | str = "cpu",
    ) -> Draws:
        signed = [seed - 2**64 if seed >= 2**63 else seed for seed in seeds]
        return cls(
            seeds=torch.tensor(signed, dtype=torch.int64, device=device),
            positions=torch.tensor(list(positions), dtype=torch.int64, device=device),
            temperatures=torch.tensor(list(temperatures), dtype=torch.float32, device=device),
        )


@dataclass(frozen=True, slots=True)
class Accepted:
    """``paths``: accepted nodes, counted from 0, from the root's child downwards."""

    paths: torch.Tensor  # int32 [B, W - 1]
    lengths: torch.Tensor  # int32 [B]
    bonuses: torch.Tensor  # int32 [B]: NOTHING where the row leaves nothing to choose


def accept(
    logits: torch.Tensor,
    drafts: Drafts,
    draws: Draws,
    *,
    rule: Rule = "coupled",
    probabilities: torch.Tensor | None = None,
    proposal: torch.Tensor | None = None,
    tickets: torch.Tensor | None = None,
) -> Accepted:
    """See the module's docstring. ``tickets``: int32 ``[>= B]`` of zeros, which the launch leaves
    zero; given, nothing is cleared before it. KernelInputError for shapes, types and devices that
    do not fit; indices on the device are not checked.
    """
    if rule not in get_args(Rule):
        raise KernelInputError(f"rule {rule!r} is not one of {', '.join(get_args(Rule))}")
    _check_rows("logits", logits, drafts, (torch.float32, torch.bfloat16, torch.float16))
    if rule != "coupled":
        if probabilities is None:
            raise KernelInputError(
                f"rule {rule} needs probabilities: the law that rows are drawn from"
            )
        for name, rows in (("probabilities", probabilities), ("proposal", proposal)):
            if rows is not None:
                _check_rows(name, rows, drafts, (torch.float32, torch.float64))
                if rows.shape != logits.shape:
                    raise KernelInputError(
                        f"{name} has shape {tuple(rows.shape)}, logits {tuple(logits.shape)};"
                        " they must be equal"
                    )
    _check_indices(drafts, draws, logits.device)
    if form_for("accept", logits) == "triton":
        from draftsmith.kernels.accept.triton import accept_triton

        return Accepted(
            *accept_triton(logits, drafts, draws, rule, probabilities, proposal, tickets)
        )
    return Accepted(*_accept_reference(logits, drafts, draws, rule, probabilities, proposal))


def _accept_reference(
    logits: torch.Tensor,
    drafts: Drafts,
    draws: Draws,
    rule: Rule,
    p: torch.Tensor | None,
    q: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    starts, seeds, positions = (
        indices.tolist() for indices in (drafts.starts, draws.seeds, draws.positions)
    )
    temperatures = draws.temperatures.tolist()
    tokens, parents, depths = (
        indices.tolist() for indices in (drafts.tokens, drafts.parents, drafts.depths)
    )
    paths = torch.full((len(seeds), drafts.width - 1), -1, dtype=torch.int32)
    lengths = torch.zeros(len(seeds), dtype=torch.int32)
    bonuses = torch.full((len(seeds),), NOTHING, dtype=torch.int32)
    for index, seed in enumerate(seeds):
        rows = slice(starts[index], starts[index + 1])
        width = rows.stop - rows.start
        if width == 0:
            continue
        seed, position, temperature = seed % 2**64, positions[index], temperatures[index]
        if rule == "coupled" or temperature == 0.0 or width == 1:
            tree = (tokens[rows], parents[rows], depths[rows])
            path, bonus = walk(logits[rows], *tree, temperature, seed, position)
        else:
            assert p is not None
            drafted = None if q is None else q[rows]
            path, bonus = judge_chain(p[rows], drafted, tokens[rows][1:], seed, position, rule)
        paths[index, : len(path)] = torch.tensor(path, dtype=torch.int32)
        lengths[index], bonuses[index] = len(path), bonus
    device = logits.device
    return paths.to(device), lengths.to(device), bonuses.to(device)


def _check_rows(
    name: str, rows: torch.Tensor, drafts: Drafts, dtypes: tuple[torch.dtype, ...]
) -> None:
    fits = rows.dim() == 2 and rows.shape[0] == drafts.num_rows and rows.shape[1] > 0
    if not fits or rows.dtype not in dtypes or not rows.is_contiguous():
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise KernelInputError(
            f"{name} is {rows.dtype} {tuple(rows.shape)} with strides {rows.stride()}; dense"
            f" [{drafts.num_rows}, V] of {known} is needed"
        )


def _check_indices(drafts: Drafts, draws: Draws, device: torch.device) -> None:
    rows, sequences = drafts.num_rows, drafts.num_sequences
    wanted = (
        ("starts", drafts.starts, torch.int32, sequences + 1),
        ("sequences", drafts.sequences, torch.int32, rows),
        ("tokens", drafts.tokens, torch.int32, rows),
        ("parents", drafts.parents, torch.int32, rows),
        ("depths", drafts.depths, torch.int32, rows),
        ("seeds", draws.seeds, torch.int64, sequences),
        ("positions", draws.positions, torch.int64, sequences),
        ("temperatures", draws.temperatures, torch.float32, sequences),
    )
    for name, indices, dtype, size in wanted:
        if indices.dtype != dtype or indices.shape != (size,) or indices.device != device:
            raise KernelInputError(
                f"{name} is {indices.dtype} {tuple(indices.shape)} on {indices.device};"
                f" {dtype} ({size},) on {device} is needed"
            )


__all__ = ["NOTHING", "Accepted", "Drafts", "Draws", "Rule", "accept", "cost", "sampled_cost"]
