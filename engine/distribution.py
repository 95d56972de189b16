"""The distribution gate: for verifiers and engines that do not share our noise (design.md 6).

Every emitted token must lie in the warped support at its prefix, and over all positions the sum of
log p(y_t) + H(p_t) (mean zero under the stock law) must stay within 4 of its standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from draftsmith.engine.decode import prefill
from draftsmith.engine.forcing import (
    HEAD_ROWS,
    EmittedOutput,
    ForcedVerdict,
    StopFault,
    check_stop,
    pair_outputs,
)
from draftsmith.engine.model.model import Model
from draftsmith.engine.sampling import RowContext, no_choice, probabilities
from draftsmith.engine.stopping import TextDecoder
from draftsmith.engine.types import Request

MAX_DEVIATIONS = 4.0


@torch.inference_mode()
def distribution_gate(
    model: Model,
    requests: Sequence[Request],
    outputs: Sequence[EmittedOutput],
    *,
    tokenizer: TextDecoder | None = None,
) -> tuple[ForcedVerdict, ...]:
    """One verdict an output: ``distribution`` when the gate passes, else ``divergent``. The
    deviation is judged over all outputs together; when it is too large every output that passed the
    support test is divergent. Raises EngineInputError for an output of no request, and where the
    model's logits leave nothing to choose (NaN).
    """
    total = variance = 0.0
    verdicts = []
    for request, output in pair_outputs(requests, outputs):
        fault = check_stop(model, request, output, tokenizer)
        emitted = output.token_ids if fault is None else output.token_ids[: fault.position]
        outside, part, part_variance = _measure(model, request, emitted)
        total, variance = total + part, variance + part_variance
        if outside is not None:
            fault = StopFault(outside, "token outside the warped support")
        at = None if fault is None else fault.position
        verdicts.append(
            ForcedVerdict(
                request_id=output.request_id,
                judgement="distribution" if fault is None else "divergent",
                num_positions=len(output.token_ids),
                position=at,
                emitted=None if at is None else next(iter(output.token_ids[at:]), None),
                detail="" if fault is None else fault.detail,
            )
        )
    deviations = abs(total) / math.sqrt(variance) if variance > 0.0 else 0.0
    if deviations <= MAX_DEVIATIONS:
        return tuple(verdicts)
    detail = (
        f"sum of log p + H is {deviations:.1f} standard deviations from 0, limit {MAX_DEVIATIONS}"
    )
    return tuple(
        ForcedVerdict(
            request_id=verdict.request_id,
            judgement="divergent",
            num_positions=verdict.num_positions,
            position=verdict.position,
            emitted=verdict.emitted,
            detail=verdict.detail or detail,
        )
        for verdict in verdicts
    )


def _measure(
    model: Model, request: Request, emitted: Sequence[int]
) -> tuple[int | None, float, float]:
    """(first position outside the support, sum of log p(y) + H, its variance) of one output."""
    if not emitted:
        return None, 0.0, 0.0
    tokens = [*request.prompt_ids, *emitted]
    prompt_len = len(request.prompt_ids)
    cache = model.new_cache(num_slots=1, capacity=len(tokens) + 1)
    rows = prefill(model, cache, cache.allocate(), tokens[:-1], every_row=True)[prompt_len - 1 :]
    total = variance = 0.0
    for begin in range(0, len(emitted), HEAD_ROWS):
        logits = model.head(rows[begin : begin + HEAD_ROWS])
        contexts = [
            RowContext(
                request.sampling,
                prompt_len,
                tokens[: prompt_len + i],
                request_id=request.request_id,
            )
            for i in range(begin, begin + logits.shape[0])
        ]
        p = probabilities(logits, contexts, eos_ids=model.info.eos_token_ids)
        log_p = torch.where(p > 0, p, 1.0).log()
        entropy = -(p * log_p).sum(-1)
        second = (p * log_p.square()).sum(-1) - entropy.square()
        for i, token in enumerate(emitted[begin : begin + HEAD_ROWS]):
            probability = float(p[i, token])
            if math.isnan(probability):
                raise no_choice(logits[i], contexts[i])
            if probability == 0.0:
                return begin + i, total, variance
            total += float(log_p[i, token] + entropy[i])
            variance += max(0.0, float(second[i]))
    return None, total, variance
