"""Outputs to be judged, read from JSON lines: what was asked, and what an engine answered.

A row holds ``prompt_ids``, ``prompt`` (a text to complete) or ``messages``; ``token_ids`` or
``text``; optionally ``id`` or ``request_id``, ``stop_reason`` (stop_token, stop_string, length) or
OpenAI's ``finish_reason`` (stop, length), and ``sampling`` (an object with the names of our flags;
``temperature``, ``max_tokens`` and so on may also stand in the row itself). A row that does not say
how it ended is judged as a prefix: each token counts, the end does not. A ``text`` is tokenised
again, so give ``token_ids`` wherever the engine has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from draftsmith.cli.configs import to_sampling
from draftsmith.cli.errors import CliInputError
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.forcing import EmittedOutput
from draftsmith.engine.limits import check_request
from draftsmith.engine.prompts import ChatTokenizer, requests_for_turn
from draftsmith.engine.sampling import check_sampling
from draftsmith.engine.types import Request, Sampling, StopReason
from draftsmith.engine.workload_formats import parse_record
from draftsmith.tuner.strict_json import read_json

_SAMPLING = frozenset(item.name for item in fields(Sampling))
_STOPS = ("stop_token", "stop_string", "length")


@dataclass(frozen=True, slots=True)
class Answered:
    """A request and what was emitted for it."""

    request: Request
    output: EmittedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the rows are read with. ``sampling`` holds for rows that do not say their own; its
    ``max_tokens`` only where it is ``limited``, else it is a default that no output must keep.
    """

    tokenizer: ChatTokenizer
    sampling: Sampling
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    max_positions: int
    limited: bool


def read_outputs(path: Path, reading: Reading) -> list[Answered]:
    """All rows; CliInputError names file and line of one that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CliInputError(f"outputs {str(path)!r} cannot be read: {reason}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(_answered(read_json(line), number, reading))
        except (ValueError, RecursionError, CliInputError, EngineInputError) as error:
            raise CliInputError(f"outputs {str(path)!r}, line {number}: {error}") from error
    if not found:
        raise CliInputError(
            f"outputs {str(path)!r} holds no rows: write one JSON object a line, for example"
            ' {"prompt": "Once upon a time", "token_ids": [28, 339]}'
        )
    return found


def read_rows(rows: tuple[Mapping[str, Any], ...], reading: Reading) -> list[Answered]:
    """Rows at hand, a bundle's; CliInputError as above."""
    return [_answered(row, number, reading) for number, row in enumerate(rows, start=1)]


def _answered(row: Any, number: int, reading: Reading) -> Answered:
    if not isinstance(row, Mapping):
        raise CliInputError(f"a {type(row).__name__} is no output: write a JSON object")
    name = _sound(str(row.get("request_id", row.get("id", f"line {number}"))), "the id")
    own = _given({key: row[key] for key in _SAMPLING & row.keys()}) | _given(row.get("sampling"))
    sampling = to_sampling(own, "sampling", reading.sampling)
    stop = _stop(row)
    tokens = _tokens(row, reading, stop)
    if stop is None or (stop == "length" and "max_tokens" not in own):
        most = len(tokens)  # as if the limit had been where the output ends
        sampling = replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))
    elif "max_tokens" not in own and not reading.limited:
        sampling = replace(sampling, max_tokens=max(sampling.max_tokens, len(tokens)))
    asked = {key: row[key] for key in ("prompt_ids", "prompt", "messages") if key in row}
    made = requests_for_turn(
        [parse_record(asked, number)], 1, {}, reading.tokenizer, sampling
    ).requests[0]
    request = Request(request_id=name, prompt_ids=made.prompt_ids, sampling=sampling)
    _check(request, len(tokens), reading)
    reason = cast(StopReason, stop) if stop in _STOPS else None
    return Answered(request, EmittedOutput(name, tokens, reason))


def _given(values: Any) -> dict[str, Any]:
    """The sampling that a row states; null states nothing, as in OpenAI's requests."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise CliInputError(f"sampling is {values!r:.60}: it must be a JSON object")
    return {name: value for name, value in values.items() if value is not None}


def _check(request: Request, num_tokens: int, reading: Reading) -> None:
    """Refuse what the target cannot be asked, or has no positions to judge."""
    check_sampling(request.sampling, reading.vocab_size)
    judged = replace(request.sampling, max_tokens=num_tokens, min_tokens=0)
    asked = replace(request, sampling=judged)
    check_request(asked, reading.vocab_size, reading.max_positions, "the target")


def _sound(text: str, what: str) -> str:
    """``text``, unless it holds half of a surrogate pair, which no output can carry."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise CliInputError(f"{what} holds half of a surrogate pair (\\ud800..\\udfff): repair it")
    return text


def _tokens(row: Mapping[str, Any], reading: Reading, stop: str | None) -> tuple[int, ...]:
    ids = row.get("token_ids")
    if ids is not None:
        if not isinstance(ids, list) or not all(type(token) is int for token in ids):
            raise CliInputError("token_ids must be a list of whole numbers")
        if not ids:
            raise CliInputError("token_ids is empty: an output has at least one token")
        return tuple(ids)
    text = row.get("text")
    if not isinstance(text, str) or not text:
        raise CliInputError("the row has no output: give token_ids, or text")
    tokens = reading.tokenizer.encode(_sound(text, "text"), add_special_tokens=False)
    if stop == "stop" and reading.eos_token_ids:
        tokens = [*tokens, reading.eos_token_ids[0]]  # engines leave the end token out of the text
    return tuple(tokens)


def _stop(row: Mapping[str, Any]) -> str | None:
    reason = row.get("stop_reason", row.get("finish_reason"))
    if reason is None:
        return None
    if reason not in (*_STOPS, "stop"):
        raise CliInputError(
            f"stop_reason is {reason!r}: use stop_token, stop_string, length, or stop"
        )
    return str(reason)
