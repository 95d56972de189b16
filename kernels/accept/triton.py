"""Triton form of verification: one launch for a ragged batch.

Grid (rows, splits of the vocabulary): every program reduces one row over one split and leaves a
partial result; the program that arrives last for a sequence puts its partial results together and
follows the tree. Partial results are put together in the order of the vocabulary, whoever comes
last.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import TYPES, Variant, launch
from draftsmith.kernels.noise.triton import (
    MAX_GUMBEL,
    NO_FUSION,
    gumbel_of,
    philox_words,
    uniform_of,
)

if TYPE_CHECKING:
    from draftsmith.kernels.accept import Drafts, Draws

_RULES = {"coupled": 0, "rejection": 1, "block": 2}

_ACCEPT: tl.constexpr = tl.constexpr(2)  # streams of kernels.noise
_RESIDUAL: tl.constexpr = tl.constexpr(3)
_NO_TOKEN: tl.constexpr = tl.constexpr(2**31 - 1)


@triton.jit
def _best_of_split(
    values, first, vocab_size, temperature, seed, position, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(score, token) of one split of a row: token -1 with score +inf where it holds NaN."""
    best = tl.full((), float("-inf"), tl.float32)
    token = tl.full((), _NO_TOKEN, tl.int32)
    for begin in range(first, min(first + SPLIT, vocab_size), BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        held = ids < vocab_size
        scores = tl.load(values + ids, mask=held, other=float("-inf")).to(tl.float32)
        bound = 0.0
        if temperature > 0.0:
            scores = tl.div_rn(scores, temperature + tl.zeros_like(scores))
            bound = MAX_GUMBEL
        undefined = scores != scores
        highest = tl.max(tl.where(undefined, float("inf"), scores), 0)
        if highest + bound > best:  # else none of the block can win
            if temperature > 0.0:
                scores += gumbel_of(philox_words(seed, position, 0, begin // 4, BLOCK))
                scores = tl.where(held, scores, float("-inf"))
                highest = tl.max(tl.where(undefined, float("inf"), scores), 0)
            if highest > best:
                best = highest
                at = tl.where(undefined, -1, tl.where(scores == highest, ids, _NO_TOKEN))
                token = tl.min(at, 0)
    return best, token


@triton.jit
def _likelihoods(
    p, q, tokens, start, width, vocab_size, ONE_HOT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Of draft j, lane j: (p and q of its token in fp64; how many drafts precede a row of NaN)."""
    lane = tl.arange(0, WIDTH)
    drafted = lane < width - 1
    at = (start + lane).to(tl.int64) * vocab_size
    token = tl.load(tokens + start + 1 + lane, mask=drafted, other=0)
    chance = tl.load(p + at + token, mask=drafted, other=0.0).to(tl.float64)
    proposed = tl.full((WIDTH,), 1.0, tl.float64)
    if not ONE_HOT:
        proposed = tl.load(q + at + token, mask=drafted, other=1.0).to(tl.float64)
    head = tl.load(p + at, mask=lane < width, other=0.0).to(tl.float64)
    size = tl.min(tl.where((head != head) & drafted, lane, width - 1), 0)
    return chance, proposed, size


@triton.jit
def _element(values, index, WIDTH: tl.constexpr):
    """One lane of a vector."""
    return tl.sum(tl.where(tl.arange(0, WIDTH) == index, values, 0.0), 0)


@triton.jit
def _scale_after(chance, proposed, drafts, WIDTH: tl.constexpr):
    """rho of block verification after the first ``drafts`` drafts."""
    rho = tl.full((), 1.0, tl.float64)
    ratio = tl.where(proposed > 0.0, chance / proposed, 0.0)
    for j in range(drafts):
        rho = tl.minimum(1.0, rho * _element(ratio, j, WIDTH))
    return rho


@triton.jit
def _weights(p, q, at, token, ids, held, scale, use_p, ONE_HOT: tl.constexpr):
    """fp64 weights of a row's next token: p, or what the proposal leaves of it."""
    chance = tl.load(p + at + ids, mask=held, other=0.0).to(tl.float64)
    if ONE_HOT:
        proposed = (ids == token).to(tl.float64)
    else:
        proposed = tl.load(q + at + ids, mask=held & (not use_p), other=0.0).to(tl.float64)
    left = scale * chance - proposed
    left = tl.where((left > 0.0) | (left != left), left, 0.0)  # with NaN, as torch's clamp
    return tl.where(held, chance, 0.0), tl.where(held, left, 0.0)


@triton.jit
def _masses_of_split(
    p, q, at, token, scale, last, first, vocab_size, ONE_HOT: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(sum of p, sum of what the proposal leaves) over one split of a row."""
    whole = tl.zeros((), tl.float64)
    rest = tl.zeros((), tl.float64)
    for begin in range(first, min(first + SPLIT, vocab_size), BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        held = ids < vocab_size
        chance, left = _weights(p, q, at, token, ids, held, scale, last, ONE_HOT)
        whole += tl.sum(chance, 0)
        rest += tl.sum(left, 0)
    return whole, rest


@triton.jit
def _draw(
    masses, p, q, at, token, scale, use_p, u, vocab_size, splits, ONE_HOT: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The token at ``u`` of the distribution function; -1 where nothing is left to draw from."""
    lane = tl.arange(0, SPLITS)
    which = tl.where(use_p, 0, 1)
    part = tl.load(masses + lane * 2 + which, mask=lane < splits, other=0.0, cache_modifier=".cg")
    upto = tl.cumsum(part, 0)
    total = _element(upto, splits - 1, SPLITS)
    target = u * total
    split = tl.min(tl.where((upto > target) & (part > 0.0), lane, SPLITS), 0)
    split = tl.where(split < splits, split, tl.max(tl.where(part > 0.0, lane, 0), 0))
    before = _element(upto, split - 1, SPLITS)
    found = tl.full((), _NO_TOKEN, tl.int32)
    last = tl.full((), -1, tl.int32)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, vocab_size)
    while (begin < end) & (found == _NO_TOKEN):
        ids = begin + tl.arange(0, BLOCK)
        chance, left = _weights(p, q, at, token, ids, ids < end, scale, use_p, ONE_HOT)
        weight = tl.where(use_p, chance, left)
        positive = weight > 0.0
        reached = before + tl.cumsum(weight, 0)
        found = tl.min(tl.where(positive & (reached > target), ids, _NO_TOKEN), 0)
        last = tl.maximum(last, tl.max(tl.where(positive, ids, -1), 0))
        before += tl.sum(weight, 0)
        begin += BLOCK
    found = tl.where(found == _NO_TOKEN, last, found)
    return tl.where(total > 0.0, found, -1)


@triton.jit
def _walk(
    best_scores, best_tokens, tokens, parents, start, width, splits, SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """(path, length, bonus): the chosen tokens followed from the root through the tree."""
    lane = tl.arange(0, WIDTH)
    held = (lane > 0) & (lane < width)
    drafted = tl.load(tokens + start + lane, mask=held, other=-1)
    parent = tl.load(parents + start + lane, mask=held, other=-1)
    split = tl.arange(0, SPLITS)
    path = tl.full((WIDTH,), -1, tl.int32)
    length = tl.full((), 0, tl.int32)
    bonus = tl.full((), -1, tl.int32)
    following = tl.full((), 0, tl.int32)
    while following >= 0:
        at = (start + following) * splits + split
        inside = split < splits
        score = tl.load(best_scores + at, mask=inside, other=float("-inf"), cache_modifier=".cg")
        token = tl.load(best_tokens + at, mask=inside, other=_NO_TOKEN, cache_modifier=".cg")
        best = tl.max(score, 0)
        bonus = tl.min(tl.where(score == best, token, _NO_TOKEN), 0)
        bonus = tl.where(best == float("-inf"), -1, bonus)
        child = held & (parent == following) & (drafted == bonus)
        following = tl.max(tl.where(child, lane, -1), 0)
        path = tl.where((lane == length) & (following >= 0), following - 1, path)
        length += tl.where(following >= 0, 1, 0)
    return path, length, bonus


@triton.jit
def _judge_chain(
    masses, p, q, tokens, start, width, seed, position, vocab_size, splits,
    BLOCK_RULE: tl.constexpr, ONE_HOT: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(path, length, bonus) of token rejection or block verification on a chain."""
    lane = tl.arange(0, WIDTH)
    chance, proposed, size = _likelihoods(p, q, tokens, start, width, vocab_size, ONE_HOT, WIDTH)
    uniforms = uniform_of(philox_words(seed, position, _ACCEPT, 0, WIDTH))
    scale = tl.full((), 1.0, tl.float64)
    kept = size
    if BLOCK_RULE:
        kept = size * 0
        rho = tl.full((), 1.0, tl.float64)
        ratio = tl.where(proposed > 0.0, chance / proposed, 0.0)
        split = tl.arange(0, SPLITS)
        for drafts in range(1, size + 1):
            rho = tl.minimum(1.0, rho * _element(ratio, drafts - 1, WIDTH))
            at = ((start + drafts) * splits + split) * 2 + 1
            left = tl.load(masses + at, mask=split < splits, other=0.0, cache_modifier=".cg")
            mass = tl.sum(left, 0)
            below = mass + 1.0 - rho
            h = tl.where(below > 0.0, mass / below, 1.0)
            h = tl.where(drafts == size, rho, h)
            keep = (_element(uniforms, drafts - 1, WIDTH) <= h) & (h > 0.0)
            kept = tl.where(keep, drafts, kept)
            scale = tl.where(keep, rho, scale)
    else:
        rejected = (uniforms * proposed >= chance) & (lane < size)
        kept = tl.min(tl.where(rejected, lane, size), 0)
    split = tl.arange(0, SPLITS)
    at = (start + kept) * splits
    left = tl.load(
        masses + (at + split) * 2 + 1, mask=split < splits, other=0.0, cache_modifier=".cg"
    )
    use_p = (kept == size) | (not (tl.sum(left, 0) > 0.0))
    token = tl.load(tokens + start + 1 + kept, mask=kept < width - 1, other=-1)
    u = _element(uniform_of(philox_words(seed, position, _RESIDUAL, 0, 4)), 0, 4)
    row = (start + kept).to(tl.int64) * vocab_size
    bonus = _draw(
        masses + at * 2, p, q, row, token, scale, use_p, u, vocab_size, splits,
        ONE_HOT, SPLIT, BLOCK, SPLITS,
    )  # fmt: skip
    return tl.where(lane < kept, lane, -1), kept, bonus


@triton.jit
def accept_kernel(
    paths, lengths, bonuses, best_scores, best_tokens, masses, tickets,
    logits, p, q, starts, sequences, tokens, parents, depths, seeds, positions, temperatures,
    num_rows, num_sequences, path_width, vocab_size, splits,
    RULE: tl.constexpr, ONE_HOT: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """RULE 0 coupled, 1 token rejection, 2 block. Tensors as in ``__init__``."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    lane = tl.arange(0, WIDTH)
    if (row < num_sequences) & (part == 0):
        begin, end = tl.load(starts + row), tl.load(starts + row + 1)
        if begin == end:  # a sequence without rows has no program of its own
            tl.store(paths + row * path_width + lane, -1, mask=lane < path_width)
            tl.store(lengths + row, 0)
            tl.store(bonuses + row, -1)
    sequence = tl.full((), -1, tl.int32)
    if row < num_rows:
        sequence = tl.load(sequences + row)
    if sequence >= 0:
        start = tl.load(starts + sequence)
        width = tl.load(starts + sequence + 1) - start
        temperature = tl.load(temperatures + sequence)
        seed = tl.load(seeds + sequence)
        position = tl.load(positions + sequence)
        coupled = (RULE == 0) | (temperature == 0.0) | (width == 1)
        first = part * SPLIT
        at = row.to(tl.int64) * vocab_size
        if coupled:
            here = position + tl.load(depths + row)
            score, token = _best_of_split(
                logits + at, first, vocab_size, temperature, seed, here, SPLIT, BLOCK
            )
            tl.store(best_scores + row * splits + part, score)
            tl.store(best_tokens + row * splits + part, token)
        elif RULE > 0:
            chance, proposed, size = _likelihoods(
                p, q, tokens, start, width, vocab_size, ONE_HOT, WIDTH
            )
            index = row - start
            if index <= size:
                scale = tl.full((), 1.0, tl.float64)
                if RULE == 2:
                    scale = _scale_after(chance, proposed, index, WIDTH)
                drafted = tl.load(tokens + row + 1, mask=index < width - 1, other=-1)
                whole, rest = _masses_of_split(
                    p, q, at, drafted, scale, index == size, first, vocab_size,
                    ONE_HOT, SPLIT, BLOCK,
                )  # fmt: skip
                tl.store(masses + (row * splits + part) * 2, whole)
                tl.store(masses + (row * splits + part) * 2 + 1, rest)
        tl.debug_barrier()  # every thread's partial results are out before the ticket is drawn
        arrived = tl.atomic_add(tickets + sequence, 1, sem="acq_rel")
        if arrived == width * splits - 1:
            tl.store(tickets + sequence, 0)  # for the next launch
            path = tl.full((WIDTH,), -1, tl.int32)
            length = tl.full((), 0, tl.int32)
            bonus = tl.full((), -1, tl.int32)
            if coupled:
                path, length, bonus = _walk(
                    best_scores, best_tokens, tokens, parents, start, width, splits, SPLITS, WIDTH
                )
            elif RULE > 0:
                path, length, bonus = _judge_chain(
                    masses, p, q, tokens, start, width, seed, position, vocab_size, splits,
                    RULE == 2, ONE_HOT, SPLIT, BLOCK, SPLITS, WIDTH,
                )  # fmt: skip
            tl.store(paths + sequence * path_width + lane, path, mask=lane < path_width)
            tl.store(lengths + sequence, length)
            tl.store(bonuses + sequence, bonus)


def accept_triton(
    logits: torch.Tensor,
    drafts: Drafts,
    draws: Draws,
    rule: str,
    probabilities: torch.Tensor | None,
    proposal: torch.Tensor | None,
    tickets: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(paths, lengths, bonuses); arguments are those of ``accept``, checked."""
    shape = configuration("accept", architecture_of(logits.device))
    num_rows, vocab_size = logits.shape
    num_sequences, path_width = drafts.num_sequences, drafts.width - 1
    splits = triton.cdiv(vocab_size, shape.blocks["SPLIT"])

    def scratch(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=logits.device)

    paths, lengths, bonuses = (
        scratch(*size) for size in ((num_sequences, path_width), (num_sequences,), (num_sequences,))
    )
    if tickets is None:
        tickets = torch.zeros(num_sequences, dtype=torch.int32, device=logits.device)
    best_scores = scratch(num_rows, splits, dtype=torch.float32)
    sampled = rule != "coupled"
    masses = scratch(num_rows, splits, 2, dtype=torch.float64) if sampled else best_scores
    p = logits if probabilities is None else probabilities
    launch(
        accept_kernel,
        (max(num_rows, num_sequences), splits),
        dict(
            **dict(paths=paths, lengths=lengths, bonuses=bonuses, tickets=tickets),
            **dict(best_scores=best_scores, best_tokens=scratch(num_rows, splits), masses=masses),
            **dict(logits=logits, p=p, q=p if proposal is None else proposal),
            **dict(starts=drafts.starts, sequences=drafts.sequences, tokens=drafts.tokens),
            **dict(parents=drafts.parents, depths=drafts.depths),
            **dict(seeds=draws.seeds, positions=draws.positions, temperatures=draws.temperatures),
            **dict(num_rows=num_rows, num_sequences=num_sequences, path_width=path_width),
            **dict(vocab_size=vocab_size, splits=splits),
            **dict(RULE=_RULES[rule], ONE_HOT=proposal is None),
            SPLITS=triton.next_power_of_2(splits),
            WIDTH=max(4, triton.next_power_of_2(drafts.width)),
        ),
        shape,
        **NO_FUSION,
    )
    return paths, lengths, bonuses


def variants() -> Iterator[Variant]:
    """Each rule over a vocabulary of up to 262,144 tokens; trees of up to 64 rows, chains of 16."""
    indices = ("paths", "lengths", "bonuses", "tickets", "best_tokens", "starts", "sequences")
    for rule, dtype in (
        ("coupled", torch.float32),
        ("coupled", torch.bfloat16),
        ("rejection", torch.float32),
        ("block", torch.float32),
    ):
        pointer = f"*{TYPES[dtype]}"
        yield Variant(
            kernel="accept",
            label=f"{rule} {TYPES[dtype]}",
            function=accept_kernel,
            arguments=dict(
                **dict.fromkeys((*indices, "tokens", "parents", "depths"), "*i32"),
                **dict.fromkeys(("best_scores", "temperatures"), "*fp32"),
                **dict.fromkeys(("logits", "p", "q"), pointer),
                **dict(seeds="*i64", positions="*i64"),
                masses="*fp32" if rule == "coupled" else "*fp64",
                **dict(num_rows="i32", num_sequences="i32", path_width="i32"),
                **dict(vocab_size="i32", splits="i32"),
            ),
            constants=dict(
                **dict(RULE=_RULES[rule], ONE_HOT=rule == "coupled", SPLITS=64),
                WIDTH=64 if rule == "coupled" else 16,
            ),
            options=NO_FUSION,
        )
