"""Token forcing: teacher-force an output through stock and judge every token (design.md 6).

The forced pass runs prompt + output in chunks and compares each emitted token with stock's choice
at that prefix, same processors, same noise. A mismatch is judged again by a one-token stock step;
then it is a ``tie`` if the margin is within the measured noise between one-at-a-time and forced
stock, or if the token sits within that noise of a top-k, top-p or min-p cut; else ``divergent``.
Length and stop reason must be those of the stop rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.decode import prefill
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.job import Judgement
from draftsmith.engine.model.model import Model
from draftsmith.engine.sampling import RowContext, cut, is_plain_greedy, noise_of, scores, tempered
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
    at T > 0).
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
class _Mismatch:
    position: int
    emitted: int
    expected: int


def forced_scores(
    model: Model, request: Request, output: Sequence[int], cache: KVCache, slot: int
) -> list[tuple[int, float]]:
    """(stock's choice, its margin over the runner-up) at every output position, from the forced
    pass.
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
        choices = values.argmax(-1).tolist()
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
    """Judge each output against stock. ``margin_noise`` is ``NoiseEstimate.noise`` in logits."""
    by_id = {request.request_id: request for request in requests}
    verdicts = []
    for output in outputs:
        if output.request_id not in by_id:
            raise EngineInputError(
                f"output {output.request_id} belongs to no request of this workload"
            )
        verdicts.append(
            _force_one(model, by_id[output.request_id], output, margin_noise, tokenizer)
        )
    return tuple(verdicts)


def _force_one(
    model: Model,
    request: Request,
    output: EmittedOutput,
    margin_noise: float,
    tokenizer: TextDecoder | None,
) -> ForcedVerdict:
    emitted = output.token_ids
    stop = check_stop(model, request, output, tokenizer)
    if not emitted or any(not 0 <= token < model.info.vocab_size for token in emitted):
        detail = stop or "a token id lies outside the vocabulary"
        return _verdict(output, "divergent", detail=detail, position=0)
    cache = model.new_cache(num_slots=1, capacity=len(request.prompt_ids) + len(emitted) + 1)
    slot = cache.allocate()
    forced = forced_scores(model, request, emitted, cache, slot)
    mismatches = [
        _Mismatch(i, token, choice)
        for i, (token, (choice, _)) in enumerate(zip(emitted, forced, strict=True))
        if token != choice
    ]
    ties: list[tuple[float, _Mismatch]] = []
    for mismatch in mismatches:
        margin = _judge_mismatch(model, request, emitted, mismatch, cache, slot, margin_noise)
        if margin is None:
            continue
        if not math.isnan(margin):
            ties.append((margin, mismatch))
            continue
        plain = _stock_margin(model, request, emitted, mismatch, cache, slot)
        return _verdict(
            output,
            "divergent",
            num_ties=len(ties),
            mismatch=mismatch,
            margin=plain,
            detail="emitted token is not stock's choice",
        )
    if stop is not None:
        return _verdict(output, "divergent", num_ties=len(ties), position=len(emitted), detail=stop)
    if ties:
        margin, widest = max(ties, key=lambda tie: tie[0])
        return _verdict(output, "tie", num_ties=len(ties), mismatch=widest, margin=margin)
    return _verdict(output, "exact")


def _verdict(
    output: EmittedOutput,
    judgement: Judgement,
    *,
    num_ties: int = 0,
    mismatch: _Mismatch | None = None,
    position: int | None = None,
    margin: float | None = None,
    detail: str = "",
) -> ForcedVerdict:
    return ForcedVerdict(
        request_id=output.request_id,
        judgement=judgement,
        num_positions=len(output.token_ids),
        num_ties=num_ties,
        position=mismatch.position if mismatch else position,
        emitted=mismatch.emitted if mismatch else None,
        expected=mismatch.expected if mismatch else None,
        margin=margin,
        detail=detail,
    )


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
    return logits, RowContext(request.sampling, len(request.prompt_ids), tokens)


def _stock_margin(
    model: Model,
    request: Request,
    emitted: Sequence[int],
    mismatch: _Mismatch,
    cache: KVCache,
    slot: int,
) -> float:
    logits, context = _stock_row(model, request, emitted, mismatch.position, cache, slot)
    values = scores(logits, [context], eos_ids=model.info.eos_token_ids)[0]
    return float(values.max() - values[mismatch.emitted])


def _judge_mismatch(
    model: Model,
    request: Request,
    emitted: Sequence[int],
    mismatch: _Mismatch,
    cache: KVCache,
    slot: int,
    margin_noise: float,
) -> float | None:
    """None: the one-token stock step emits this token too. A number: a tie, with its margin. NaN:
    divergent.
    """
    logits, context = _stock_row(model, request, emitted, mismatch.position, cache, slot)
    eos = model.info.eos_token_ids
    values = scores(logits, [context], eos_ids=eos)[0]
    if int(values.argmax()) == mismatch.emitted:
        return None
    temperature = request.sampling.temperature
    tolerance = min(margin_noise, MAX_TIE_LOGITS) / (temperature or 1.0)
    margin = float(values.max() - values[mismatch.emitted])
    if margin <= tolerance:
        return margin
    if is_plain_greedy(context) or temperature == 0.0:
        return math.nan
    return _judge_near_cut(logits[0], context, eos, mismatch.emitted, tolerance)


def _judge_near_cut(
    row: torch.Tensor, context: RowContext, eos: Sequence[int], emitted: int, tolerance: float
) -> float:
    """Whether the emitted token could have won had the tokens within ``tolerance`` of the cut
    fallen on its other side.
    """
    warm = tempered(row, context, eos)
    kept = cut(warm, context.sampling)
    inside = torch.isfinite(kept)
    if bool(inside.all()):
        return math.nan
    edge = warm[inside].min()
    near = (warm - edge).abs() <= tolerance
    if not bool(inside[emitted] | near[emitted]):
        return math.nan
    values = warm + noise_of(context, warm.numel(), None, warm.device)
    firm = values[inside & ~near]
    best = float(firm.max()) if firm.numel() else -math.inf
    margin = best - float(values[emitted])
    return max(margin, 0.0) if margin <= tolerance else math.nan


def check_stop(
    model: Model, request: Request, output: EmittedOutput, tokenizer: TextDecoder | None
) -> str | None:
    """What is wrong with where and why the output ends, or None."""
    if not output.token_ids:
        return "the output is empty"
    rule = StopRule(request.sampling, model.info.eos_token_ids, tokenizer)
    for count in range(1, len(output.token_ids) + 1):
        reason = rule.check(output.token_ids[:count])
        if reason is not None and count < len(output.token_ids):
            return f"goes on after {reason} at position {count - 1}"
    if reason is None:
        return f"ends early, after {len(output.token_ids)} tokens, no stop condition holds"
    if output.stop_reason is not None and reason != output.stop_reason:
        return f"says it stopped by {output.stop_reason}, stock stops by {reason}"
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
