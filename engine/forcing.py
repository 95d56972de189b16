"""Token forcing: teacher-force an output through stock and judge every token (design.md 6).

The forced pass runs prompt + output in chunks and compares each emitted token with stock's choice
at that prefix, same processors, same noise. A mismatch is judged again by a one-token stock step;
then it is a ``tie`` if the margin is within the measured noise between one-at-a-time and forced
stock, or if the token sits within that noise of a top-k, top-p or min-p cut; else ``divergent``.
Length and stop reason must be those of the stop rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.decode import prefill
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.job import Judgement
from draftsmith.engine.model.model import Model
from draftsmith.engine.near_cut import margin_at_cut
from draftsmith.engine.sampling import (
    RowContext,
    no_choice,
    noise_of,
    scores,
    settled,
    tempered,
)
from draftsmith.engine.stock import step_row
from draftsmith.engine.stopping import StopRule, TextDecoder
from draftsmith.engine.types import Completion, Request, StopReason

MAX_TIE_LOGITS = 0.25
NOISE_QUANTILE = 0.999
SUSPECT_P = 0.001
HEAD_ROWS = 64  # rows of logits held at once


@dataclass(frozen=True, slots=True)
class EmittedOutput:
    """What an engine emitted for one request; ``stop_reason`` None is not judged."""

    request_id: str
    token_ids: tuple[int, ...]
    stop_reason: StopReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedVerdict:
    """``position`` (output position), ``emitted``, ``expected``, ``margin`` describe the first
    divergence, else the widest tie. ``margin`` is in units of the scores compared (logits, over T
    at T > 0). A wrong end is at the first position that should not be there, or that is missing.
    """

    request_id: str
    judgement: Judgement
    num_positions: int
    num_ties: int = 0
    position: int | None = None
    emitted: int | None = None
    expected: int | None = None
    margin: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """``noise``: 99.9th percentile of the margin's change between one-at-a-time and forced stock,
    in score units at T = 1 (logits). ``num_ties``: positions of stock's own output that forced
    stock would choose otherwise.
    """

    noise: float
    num_positions: int
    num_ties: int


@dataclass(frozen=True, slots=True)
class StopFault:
    """What is wrong with an output's end, and the first output position that it concerns."""

    position: int
    detail: str


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """An emitted token that is not the choice of a one-token stock step."""

    position: int
    emitted: int
    expected: int
    margin: float
    is_tie: bool


def forced_scores(
    model: Model, request: Request, output: Sequence[int], cache: KVCache, slot: int
) -> list[tuple[int, float]]:
    """(stock's choice, its margin over the runner-up) at every output position, from the forced
    pass; NOTHING for the choice where there is none.
    """
    tokens = [*request.prompt_ids, *output]
    hidden = prefill(model, cache, slot, tokens[:-1], every_row=True)
    rows = hidden[len(request.prompt_ids) - 1 :]
    found: list[tuple[int, float]] = []
    for begin in range(0, len(output), HEAD_ROWS):
        logits = model.head(rows[begin : begin + HEAD_ROWS])
        contexts = [
            RowContext(
                request.sampling, len(request.prompt_ids), tokens[: len(request.prompt_ids) + i]
            )
            for i in range(begin, begin + logits.shape[0])
        ]
        values = scores(logits, contexts, eos_ids=model.info.eos_token_ids)
        choices = settled(values, values.argmax(-1, keepdim=True))[:, 0].tolist()
        top = values.topk(2, dim=-1).values
        found.extend(zip(choices, (top[:, 0] - top[:, 1]).tolist(), strict=True))
    return found


@torch.inference_mode()
def force_outputs(
    model: Model,
    requests: Sequence[Request],
    outputs: Sequence[EmittedOutput],
    *,
    margin_noise: float = 0.0,
    tokenizer: TextDecoder | None = None,
) -> tuple[ForcedVerdict, ...]:
    """Judge each output against stock. ``margin_noise`` is ``NoiseEstimate.noise`` in logits.
    Raises EngineInputError for an output of no request, and where the model's logits leave nothing
    to choose (NaN).
    """
    return tuple(
        _force_one(model, request, output, margin_noise, tokenizer)
        for request, output in pair_outputs(requests, outputs)
    )


def pair_outputs(
    requests: Sequence[Request], outputs: Sequence[EmittedOutput]
) -> list[tuple[Request, EmittedOutput]]:
    """Each output with its request."""
    by_id = {request.request_id: request for request in requests}
    for output in outputs:
        if output.request_id not in by_id:
            raise EngineInputError(
                f"output {output.request_id} belongs to no request of this workload; judge it"
                " with the workload that it was made from"
            )
    return [(by_id[output.request_id], output) for output in outputs]


def _force_one(
    model: Model,
    request: Request,
    output: EmittedOutput,
    margin_noise: float,
    tokenizer: TextDecoder | None,
) -> ForcedVerdict:
    fault = check_stop(model, request, output, tokenizer)
    emitted = output.token_ids if fault is None else output.token_ids[: fault.position]
    ties: list[_Mismatch] = []
    for mismatch in _mismatches(model, request, emitted, margin_noise):
        if not mismatch.is_tie:
            detail = "emitted token is not stock's choice"
            return _verdict(output, "divergent", ties, mismatch, detail)
        ties.append(mismatch)
    if fault is not None:
        return ForcedVerdict(
            request_id=output.request_id,
            judgement="divergent",
            num_positions=len(output.token_ids),
            num_ties=len(ties),
            position=fault.position,
            emitted=next(iter(output.token_ids[fault.position :]), None),
            detail=fault.detail,
        )
    if ties:
        return _verdict(output, "tie", ties, max(ties, key=lambda tie: tie.margin))
    return _verdict(output, "exact", ties)


def _verdict(
    output: EmittedOutput,
    judgement: Judgement,
    ties: Sequence[_Mismatch],
    mismatch: _Mismatch | None = None,
    detail: str = "",
) -> ForcedVerdict:
    return ForcedVerdict(
        request_id=output.request_id,
        judgement=judgement,
        num_positions=len(output.token_ids),
        num_ties=len(ties),
        position=mismatch.position if mismatch else None,
        emitted=mismatch.emitted if mismatch else None,
        expected=mismatch.expected if mismatch else None,
        margin=mismatch.margin if mismatch else None,
        detail=detail,
    )


def _mismatches(
    model: Model, request: Request, emitted: Sequence[int], margin_noise: float
) -> Iterator[_Mismatch]:
    """In order of position, those emitted tokens that neither the forced pass nor a one-token stock
    step would choose at their prefix.
    """
    if not emitted:
        return
    cache = model.new_cache(num_slots=1, capacity=len(request.prompt_ids) + len(emitted) + 1)
    slot = cache.allocate()
    forced = forced_scores(model, request, emitted, cache, slot)
    for position, (token, (choice, _)) in enumerate(zip(emitted, forced, strict=True)):
        if token != choice:
            logits, context = _stock_row(model, request, emitted, position, cache, slot)
            mismatch = _judge_token(model, logits, context, position, token, margin_noise)
            if mismatch is not None:
                yield mismatch


def _stock_row(
    model: Model, request: Request, emitted: Sequence[int], at: int, cache: KVCache, slot: int
) -> tuple[torch.Tensor, RowContext]:
    """Raw logits ``[1, V]`` of a one-token stock step at output position ``at``; its context."""
    tokens = [*request.prompt_ids, *emitted[:at]]
    cache.crop(slot, min(len(tokens) - 1, cache.lengths[slot]))
    missing = tokens[cache.lengths[slot] : -1]
    if missing:
        prefill(model, cache, slot, missing)
    logits = step_row(model, cache, slot, tokens[-1])
    context = RowContext(
        request.sampling, len(request.prompt_ids), tokens, request_id=request.request_id
    )
    return logits, context


def _judge_token(
    model: Model,
    logits: torch.Tensor,
    context: RowContext,
    position: int,
    emitted: int,
    margin_noise: float,
) -> _Mismatch | None:
    """None when the one-token stock step chooses ``emitted`` too. EngineInputError when it has
    nothing to choose.
    """
    eos = model.info.eos_token_ids
    values = scores(logits, [context], eos_ids=eos)[0]
    expected = int(values.argmax())
    if not values[expected] > -torch.inf:
        raise no_choice(logits[0], context)
    if expected == emitted:
        return None
    sampling = context.sampling
    tolerance = min(margin_noise, MAX_TIE_LOGITS) / (sampling.temperature or 1.0)
    margin = float(values[expected] - values[emitted])
    if margin > tolerance and sampling.temperature > 0.0:
        warm = tempered(logits[0], context, eos)
        noise = noise_of(context, warm.numel(), None, warm.device)
        at_cut = margin_at_cut(warm, noise, sampling, emitted, tolerance)
        if at_cut is not None:
            return _Mismatch(position, emitted, expected, at_cut, is_tie=True)
    return _Mismatch(position, emitted, expected, margin, is_tie=margin <= tolerance)


def check_stop(
    model: Model, request: Request, output: EmittedOutput, tokenizer: TextDecoder | None
) -> StopFault | None:
    """What is wrong with where and why the output ends, or with an id that no token has."""
    emitted, size = output.token_ids, model.info.vocab_size
    known = next((i for i, token in enumerate(emitted) if not 0 <= token < size), len(emitted))
    rule = StopRule(request.sampling, model.info.eos_token_ids, tokenizer)
    reason: StopReason | None = None
    for count in range(1, known + 1):
        reason = rule.check(emitted[:count])
        if reason is not None and count < len(emitted):
            return StopFault(count, f"goes on after {reason} at position {count - 1}")
    if known < len(emitted):
        return StopFault(known, f"token id {emitted[known]} is outside the vocabulary of {size}")
    if not emitted:
        return StopFault(0, "the output is empty")
    if reason is None:
        return StopFault(known, f"ends early, after {known} tokens, no stop condition holds")
    if output.stop_reason is not None and reason != output.stop_reason:
        detail = f"says it stopped by {output.stop_reason}, stock stops by {reason}"
        return StopFault(known, detail)
    return None


@torch.inference_mode()
def measure_margin_noise(
    model: Model, requests: Sequence[Request], completions: Sequence[Completion]
) -> NoiseEstimate:
    """Compare the margins stock saw one token at a time with those of the forced pass over its own
    output.
    """
    by_id = {request.request_id: request for request in requests}
    differences: list[float] = []
    num_ties = 0
    for completion in completions:
        request = by_id[completion.request_id]
        if len(completion.margins) != len(completion.token_ids):
            raise EngineInputError(
                f"completion {completion.request_id} has {len(completion.margins)} margins for"
                f" {len(completion.token_ids)} tokens; run stock with capture_margins=True"
            )
        size = len(request.prompt_ids) + len(completion.token_ids) + 1
        cache = model.new_cache(num_slots=1, capacity=size)
        forced = forced_scores(model, request, completion.token_ids, cache, cache.allocate())
        scale = request.sampling.temperature or 1.0
        for token, margin, (choice, other) in zip(
            completion.token_ids, completion.margins, forced, strict=True
        ):
            num_ties += token != choice
            signed = other if token == choice else -other
            if math.isfinite(margin) and math.isfinite(signed):
                differences.append(abs(margin - signed) * scale)
    noise = 0.0
    if differences:
        noise = float(torch.tensor(differences, dtype=torch.float64).quantile(NOISE_QUANTILE))
    return NoiseEstimate(noise, len(differences), num_ties)


def is_suspect(num_ties: int, num_positions: int, stock_ties: int, stock_positions: int) -> bool:
    """Whether a tie rate exceeds stock's own: binomial upper tail under (stock_ties + 1) /
    (stock_positions + 1) below 0.001.
    """
    if num_ties == 0:
        return False
    rate = min(1.0, (stock_ties + 1) / (stock_positions + 1))
    below = sum(_binomial(k, num_positions, rate) for k in range(num_ties))
    return 1.0 - below < SUSPECT_P


def _binomial(k: int, n: int, p: float) -> float:
    if p >= 1.0:
        return float(k == n)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))
