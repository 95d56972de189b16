"""What a request may ask of a model: known before any weight is loaded."""

from __future__ import annotations

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.sampling import check_sampling
from draftsmith.engine.types import Request


def check_request(request: Request, vocab_size: int, max_positions: int | None, model: str) -> None:
    """Raise EngineInputError for sampling out of its range, an empty prompt, token ids outside the
    vocabulary, and more positions than ``model`` has (None: not known yet, not checked).
    """
    check_sampling(request.sampling, vocab_size)
    if not request.prompt_ids:
        raise EngineInputError(f"request {request.request_id} has an empty prompt")
    bad = next((token for token in request.prompt_ids if not 0 <= token < vocab_size), None)
    if bad is not None:
        raise EngineInputError(
            f"request {request.request_id} has token id {bad}, the target's vocabulary"
            f" has {vocab_size}; tokenise with the target's own tokenizer"
        )
    total = len(request.prompt_ids) + request.sampling.max_tokens
    if max_positions is not None and total > max_positions:
        raise EngineInputError(
            f"request {request.request_id} needs {total} positions (prompt"
            f" {len(request.prompt_ids)} + max_tokens {request.sampling.max_tokens}),"
            f" {model} has {max_positions}; shorten the prompt or lower max_tokens"
        )
