"""From logits to a token: penalties, temperature, cuts and the request's shared noise.

Stock and speculation call the same functions on the same row with the same history, so what
speculation gives is what it gives when off. At T > 0 the choice is argmax(log p + G) with
counter-based Gumbel noise G keyed by (request seed, output position, token id): design.md section
6, algorithms.md A7. Order of the processors, as in vLLM: minimum tokens, repetition, frequency and
presence penalties, temperature, min-p, top-k, top-p. Every row is processed on its own: its result
does not depend on the rows beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.types import Sampling
from draftsmith.kernels.noise import DRAFT, gumbel, noisy_argmax, uniform

NOTHING = -1  # in place of a chosen column: the best score of the row is NaN or minus infinity
NUCLEUS_START = 256  # columns sorted first for top-p; eight times as many while they do not suffice


@dataclass(frozen=True, slots=True)
class RowContext:
    """What precedes the token to be chosen: ``tokens`` (prompt + committed output) and then
    ``path``.
    """

    sampling: Sampling
    prompt_len: int
    tokens: Sequence[int]
    path: tuple[int, ...] = ()
    request_id: str = ""

    @property
    def position(self) -> int:
        """Output position of the token to be chosen, from 0."""
        return len(self.tokens) + len(self.path) - self.prompt_len

    @property
    def root_position(self) -> int:
        """Output position of the first token drafted in this step; distinct for every step."""
        return len(self.tokens) - self.prompt_len


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raise EngineInputError on values outside their ranges, naming value, limit and fix."""
    bounds = (
        ("temperature", sampling.temperature, 0.0, 100.0),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("repetition_penalty", sampling.repetition_penalty, 1e-3, 100.0),
        ("presence_penalty", sampling.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0),
        ("top_k", sampling.top_k, 0, vocab_size),
        ("max_tokens", sampling.max_tokens, 1, 1_000_000),
        ("min_tokens", sampling.min_tokens, 0, sampling.max_tokens),
        ("seed", sampling.seed, 0, 2**64 - 1),
    )
    for name, value, low, high in bounds:
        if not low <= value <= high:
            raise EngineInputError(f"{name} is {value}; give a value between {low} and {high}")
    if sampling.top_p == 0.0:
        raise EngineInputError("top_p is 0.0, which keeps no token; give a value above 0, up to 1")
    if any(not 0 <= token < vocab_size for token in sampling.stop_token_ids):
        raise EngineInputError(
            f"stop_token_ids {list(sampling.stop_token_ids)} leave the vocabulary of {vocab_size}"
        )
    if any(not text for text in sampling.stop_strings):
        raise EngineInputError("a stop string is empty; it would end every request at once")


def is_plain_greedy(context: RowContext) -> bool:
    """True when the choice is the arg-max of the raw logits."""
    s = context.sampling
    return (
        s.temperature == 0.0
        and s.repetition_penalty == 1.0
        and s.presence_penalty == 0.0
        and s.frequency_penalty == 0.0
        and context.position >= s.min_tokens
    )


def settled(values: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """``best`` ``[..., 1]``, the column of each row's arg-max, or NOTHING where the number there
    leaves nothing to choose. Every arg-max takes NaN for the largest number, so NaN is found by
    this one number a row, and without waiting for the device.
    """
    return torch.where(values.gather(-1, best) > -torch.inf, best, NOTHING)


def no_choice(row: torch.Tensor, context: RowContext) -> EngineInputError:
    """The error for a row of the target's raw logits ``[V]`` that leaves nothing to choose."""
    of = f" of request {context.request_id}" if context.request_id else ""
    where = f"output position {context.position}{of}"
    highest = float(row.max())  # NaN if there is any
    if math.isfinite(highest):
        return EngineInputError(
            f"no token is left to choose at {where}: temperature"
            f" {context.sampling.temperature}, penalties or min_tokens leave no score that is a"
            " number; use values nearer to their defaults"
        )
    what = "NaN" if math.isnan(highest) else "infinite numbers"
    return EngineInputError(
        f"logits of the target at {where} hold {what}; the checkpoint or its dtype overflows: use"
        " bfloat16 or float32, or check the checkpoint"
    )


def _columns(
    ids: Sequence[int], token_ids: torch.Tensor | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column of each id that the row holds, and the mask of the ids held."""
    wanted = torch.tensor(list(ids), dtype=torch.int64, device=device)
    if token_ids is None:
        return wanted, torch.ones_like(wanted, dtype=torch.bool)
    column = torch.searchsorted(token_ids, wanted).clamp(max=token_ids.numel() - 1)
    held = token_ids[column] == wanted
    return column[held], held


def penalised(
    row: torch.Tensor,
    context: RowContext,
    eos_ids: Sequence[int],
    token_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """Minimum tokens and penalties on one row of fp32 logits ``[V or Vd]``; a new tensor when
    anything changes.
    """
    s = context.sampling
    out = row
    if context.position < s.min_tokens:
        banned = set(s.stop_token_ids) | (set() if s.ignore_eos else set(eos_ids))
        out = out.clone()
        out[_columns(sorted(banned), token_ids, row.device)[0]] = -torch.inf
    if s.repetition_penalty != 1.0:
        seen = sorted(set(context.tokens) | set(context.path))
        column, _ = _columns(seen, token_ids, row.device)
        out = out.clone() if out is row else out
        value = out[column]
        out[column] = torch.where(
            value > 0, value / s.repetition_penalty, value * s.repetition_penalty
        )
    if s.presence_penalty != 0.0 or s.frequency_penalty != 0.0:
        counts = Counter(context.tokens[context.prompt_len :])
        counts.update(context.path)
        if counts:
            ids = sorted(counts)
            column, held = _columns(ids, token_ids, row.device)
            amount = torch.tensor([float(counts[i]) for i in ids], device=row.device)[held]
            out = out.clone() if out is row else out
            out[column] -= s.frequency_penalty * amount + s.presence_penalty
    return out


def cut(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """min-p, then top-k, then top-p (of what is left) on one row of tempered logits: -inf outside
    the support. At equal logits the lower column stays.
    """
    kept = kept_columns(row, sampling)
    if kept is None:
        return row
    out = torch.full_like(row, -torch.inf)
    out[kept] = row[kept]
    return out


def kept_columns(row: torch.Tensor, sampling: Sampling) -> torch.Tensor | None:
    """The columns that the cuts leave, ascending; None when nothing is cut. Rows are never sorted
    as a whole: a few hundred columns hold nearly all that top-k and top-p keep. Of a row with NaN
    either NaN is kept or nothing.
    """
    kept: torch.Tensor | None = None
    if sampling.min_p > 0.0:
        floor = row.max() + torch.log(torch.tensor(sampling.min_p, device=row.device))
        kept = (row < floor).logical_not().nonzero().squeeze(-1)  # with NaN, as the next two
    if 0 < sampling.top_k < row.numel():
        kept = _narrowed(row, kept, lambda values: _highest(values, sampling.top_k))
    if sampling.top_p < 1.0:
        kept = _narrowed(row, kept, lambda values: _nucleus(values, sampling.top_p))
    return kept


def _narrowed(
    row: torch.Tensor,
    kept: torch.Tensor | None,
    choose_of: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    if kept is None:
        return choose_of(row)
    return kept[choose_of(row[kept])]


def _descending(values: torch.Tensor, count: int) -> torch.Tensor:
    """Columns of the ``count`` highest values and of all that equal the last of them, highest
    first, the lower column first among equals.
    """
    last = torch.topk(values, count).values[-1]
    columns = (values < last).logical_not().nonzero().squeeze(-1)
    return columns[torch.sort(values[columns], descending=True, stable=True).indices]


def _highest(values: torch.Tensor, count: int) -> torch.Tensor:
    if count >= values.numel():
        return torch.arange(values.numel(), device=values.device)
    return _descending(values, count)[:count].sort().values


def _nucleus(values: torch.Tensor, top_p: float) -> torch.Tensor:
    """The fewest highest columns whose probabilities reach ``top_p``, ascending."""
    wide = values.double()
    highest = wide.max()
    total = (wide - highest).exp().sum()
    count = min(NUCLEUS_START, values.numel())
    while True:
        columns = _descending(values, count)
        mass = (wide[columns] - highest).exp() / total
        inside = (mass.cumsum(-1) - mass) < top_p
        if count == values.numel() or not bool(inside.all()):
            return columns[inside].sort().values
        count = min(8 * count, values.numel())


def tempered(
    row: torch.Tensor,
    context: RowContext,
    eos_ids: Sequence[int],
    token_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """Penalised logits over the temperature (as they are at T = 0), before the cuts."""
    out = penalised(row, context, eos_ids, token_ids)
    return out if context.sampling.temperature == 0.0 else out / context.sampling.temperature


def noise_key(context: RowContext) -> tuple[int, int]:
    """(seed, output position) of the noise that the request shares at this place."""
    return context.sampling.seed, context.position


def noise_of(
    context: RowContext, size: int, token_ids: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """The request's shared Gumbel noise at this output position, ``[V or Vd]`` fp32."""
    ids = size if token_ids is None else token_ids.cpu()
    return gumbel(*noise_key(context), ids).to(device)


def scores_row(
    row: torch.Tensor,
    context: RowContext,
    eos_ids: Sequence[int],
    token_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """Values whose arg-max (lowest column at ties) is the choice, for one row ``[V or Vd]``."""
    out = tempered(row, context, eos_ids, token_ids)
    if context.sampling.temperature == 0.0:
        return out
    kept = kept_columns(out, context.sampling)
    if kept is None:
        return out + noise_of(context, out.numel(), token_ids, row.device)
    result = torch.full_like(out, -torch.inf)
    ids = kept if token_ids is None else token_ids[kept]
    if kept.numel() * 8 < out.numel():
        noise = noise_of(context, 0, ids, row.device)
    else:
        noise = noise_of(context, out.numel(), token_ids, row.device)[kept]
    result[kept] = out[kept] + noise
    return result


def scores(
    logits: torch.Tensor,
    contexts: Sequence[RowContext],
    *,
    eos_ids: Sequence[int] = (),
    token_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """``[N, V or Vd]`` values whose arg-max a row is the choice; columns stand for ``token_ids`` if
    given.
    """
    if all(is_plain_greedy(context) for context in contexts):
        return logits
    rows = [
        scores_row(row, context, eos_ids, token_ids)
        for row, context in zip(logits, contexts, strict=True)
    ]
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)  # no copy of a single row


def _is_uncut(sampling: Sampling) -> bool:
    """True when every token keeps its chance: temperature without top-k, top-p or min-p."""
    return (
        sampling.temperature > 0.0
        and sampling.top_k == 0
        and sampling.top_p == 1.0
        and sampling.min_p == 0.0
    )


def _uncut_choice(row: torch.Tensor, context: RowContext, eos_ids: Sequence[int]) -> int:
    """The arg-max of ``scores_row``, noise drawn only for tokens that can still win."""
    values = tempered(row, context, eos_ids)
    return noisy_argmax(values.float(), *noise_key(context))


def choose(
    logits: torch.Tensor, contexts: Sequence[RowContext], *, eos_ids: Sequence[int] = ()
) -> list[int]:
    """The chosen token of each row of ``[N, V]`` raw logits. EngineInputError for a row that leaves
    nothing to choose.
    """
    if all(_is_uncut(context.sampling) for context in contexts) and logits.is_cpu:
        choices = [
            _uncut_choice(row, context, eos_ids)
            for row, context in zip(logits, contexts, strict=True)
        ]
    else:
        values = scores(logits, contexts, eos_ids=eos_ids)
        choices = settled(values, values.argmax(-1, keepdim=True)).flatten().tolist()
    if NOTHING in choices:
        row = choices.index(NOTHING)
        raise no_choice(logits[row], contexts[row])
    return choices


def probabilities(
    logits: torch.Tensor,
    contexts: Sequence[RowContext],
    *,
    eos_ids: Sequence[int] = (),
    token_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """Warped distributions ``[N, V or Vd]`` in float64 (one-hot at T = 0), the law that a row is
    drawn from. A row that leaves nothing to choose has NaN in its place.
    """
    rows = []
    for row, context in zip(logits, contexts, strict=True):
        z = tempered(row, context, eos_ids, token_ids)
        if context.sampling.temperature == 0.0:
            best = settled(z, z.argmax(-1, keepdim=True))
            one_hot = torch.zeros_like(z, dtype=torch.float64).scatter_(0, best.clamp(min=0), 1.0)
            rows.append(torch.where(best == NOTHING, torch.nan, one_hot))
        else:
            rows.append(torch.softmax(cut(z, context.sampling).double(), dim=-1))
    return torch.stack(rows)


def draw(weights: torch.Tensor, u: float) -> int:
    """Index drawn from non-negative ``weights`` ``[V]`` (not normalised) by inverse distribution
    function at u; NOTHING where they are NaN or all 0.
    """
    cumulative = weights.double().cumsum(-1)
    total = float(cumulative[-1])
    if not total > 0.0:
        return NOTHING
    index = int(torch.searchsorted(cumulative, u * total, right=True))
    if index < weights.numel() and weights[index] > 0:
        return index
    return int(weights.nonzero()[-1])


def sample_draft(probs_row: torch.Tensor, context: RowContext) -> int:
    """Draw a draft token for rejection or block verification, on the draft noise stream.

    Keyed by (position of the step's root, depth): a position that is drafted again in a later step
    gets fresh noise, without which block verification would be biased. EngineInputError when the
    drafter's logits left NaN.
    """
    u = uniform(context.sampling.seed, context.root_position, index=len(context.path), stream=DRAFT)
    token = draw(probs_row, u)
    if token == NOTHING:
        raise EngineInputError(
            f"logits of the drafter at output position {context.position} hold NaN or infinite"
            " numbers; its checkpoint or dtype overflows: check the draft model, or use another"
            " drafter"
        )
    return token
