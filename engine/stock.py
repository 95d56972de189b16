"""Stock: the target decoding one token a step, one request at a time, without the decode loop's
machinery.

The oracle of the tests and the last judge of token forcing. It shares the model, the choice and the
stop rule with the engine, and nothing else: a fault in batching, trees, cache gathering or commit
cannot hide in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftsmith.engine.batch import causal_rows
from draftsmith.engine.cache import KVCache
from draftsmith.engine.model.model import Model
from draftsmith.engine.sampling import RowContext, choose
from draftsmith.engine.stopping import StopRule, TextDecoder
from draftsmith.engine.types import Request, StopReason


@dataclass(frozen=True, slots=True)
class StockOutput:
    token_ids: tuple[int, ...]
    stop_reason: StopReason


@torch.inference_mode()
def decode_stock(model: Model, request: Request, decoder: TextDecoder | None = None) -> StockOutput:
    """The reference output of one request. Raises EngineInputError where the model's logits leave
    nothing to choose (NaN).
    """
    rule = StopRule(request.sampling, model.info.eos_token_ids, decoder)
    tokens = list(request.prompt_ids)
    cache = model.new_cache(num_slots=1, capacity=len(tokens) + request.sampling.max_tokens + 1)
    slot = cache.allocate()
    for token in tokens[:-1]:
        step_row(model, cache, slot, token)
    while True:
        logits = step_row(model, cache, slot, tokens[-1])
        context = RowContext(
            request.sampling, len(request.prompt_ids), tokens, request_id=request.request_id
        )
        tokens.extend(choose(logits, [context], eos_ids=model.info.eos_token_ids))
        reason = rule.check(tokens[len(request.prompt_ids) :])
        if reason is not None:
            return StockOutput(tuple(tokens[len(request.prompt_ids) :]), reason)


def step_row(model: Model, cache: KVCache, slot: int, token: int) -> torch.Tensor:
    """One token, one row: logits ``[1, V]`` of what follows it; the row is committed."""
    hidden = model.forward(causal_rows(slot, [token], cache.lengths[slot]), cache)
    cache.keep(slot, [0])
    return model.head(hidden.last[0])
