"""When a request ends: stop tokens, stop strings, length. One rule for stock, speculation and
forcing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.types import Sampling, StopReason


class TextDecoder(Protocol):
    """The part of a tokenizer that stop strings need."""

    def decode(self, token_ids: list[int]) -> str: ...


class StopRule:
    """The stop condition of one request. A stop token is emitted and ends the output; a stop string
    ends it with the token that completes the string. Neither counts before ``min_tokens`` tokens.
    """

    def __init__(
        self, sampling: Sampling, eos_ids: Sequence[int], decoder: TextDecoder | None = None
    ) -> None:
        if sampling.stop_strings and decoder is None:
            raise EngineInputError(
                f"stop strings {list(sampling.stop_strings)} need a tokenizer, none was loaded"
            )
        self._sampling = sampling
        self._stop_ids = frozenset(sampling.stop_token_ids) | (
            frozenset() if sampling.ignore_eos else frozenset(eos_ids)
        )
        self._decoder = decoder

    def check(self, tokens: Sequence[int], start: int = 0) -> StopReason | None:
        """Reason to end after the last token of the output ``tokens[start:]``, judged as if no
        earlier token had ended it. The output is read as a whole for stop strings only.
        """
        count = len(tokens) - start
        if count >= self._sampling.min_tokens:
            if tokens[-1] in self._stop_ids:
                return "stop_token"
            if self._decoder is not None and self._sampling.stop_strings:
                text = self._decoder.decode(list(tokens[start:]))
                if any(stop in text for stop in self._sampling.stop_strings):
                    return "stop_string"
        return "length" if count >= self._sampling.max_tokens else None
