"""From workload rows to requests: chat template, token ids, one seed a request.

A chat goes through the tokenizer's own template. A tokenizer without one gets plain text, a line
a message, ``System: ...``, ``User: ...``, ``Assistant: ...``, ending in ``Assistant:``. A template
that refuses system messages (Gemma's) gets the system text at the head of the first user message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from draftsmith.engine.drafters.vocabulary import rank_by_frequency
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.types import Request, Sampling
from draftsmith.engine.workload_formats import Message, WorkloadRow

# ValueError: transformers', for a tokenizer with several templates and none by default.
_REFUSALS = (TemplateError, ValueError)


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that prompts need."""

    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


@dataclass(frozen=True, slots=True)
class TurnRequests:
    """The requests of one turn. Left out, by row id: prompts of more than the allowed tokens, and
    rows whose earlier turn has no answer (it was left out itself).
    """

    requests: tuple[Request, ...]
    too_long: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()


def num_turns(rows: Iterable[WorkloadRow]) -> int:
    """The most turns that any row has; 0 without rows."""
    return max((row.num_turns for row in rows), default=0)


def request_id(row_id: str, turn: int) -> str:
    """Id of the request that asks turn ``turn`` (from 1) of a row."""
    return row_id if turn == 1 else f"{row_id}#t{turn}"


def request_seed(seed: int, request_id: str) -> int:
    """A request's own seed, below 2^63: from the deployment's seed and the request's id, and so
    independent of slot, batch and order of arrival.
    """
    digest = hashlib.sha256(f"{seed}:{request_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def requests_for_turn(
    rows: Iterable[WorkloadRow],
    turn: int,
    previous: Mapping[str, str],
    tokenizer: ChatTokenizer | None,
    sampling: Sampling,
    *,
    max_prompt_tokens: int | None = None,
) -> TurnRequests:
    """Requests for turn ``turn`` (from 1) of the rows that have it. ``previous`` maps the request
    ids of earlier turns to the assistant's text. ``sampling`` is the deployment's: a row's
    ``max_tokens`` can only lower it. Prompts over ``max_prompt_tokens`` are left out whole, never
    cut, since a cut prompt is no longer the user's. Rows of token ids need no tokenizer.
    """
    if turn < 1:
        raise EngineInputError(f"turn is {turn}: turns count from 1")
    requests: list[Request] = []
    too_long: list[str] = []
    unanswered: list[str] = []
    for row in rows:
        if row.num_turns < turn:
            continue
        if any(request_id(row.row_id, earlier) not in previous for earlier in range(1, turn)):
            unanswered.append(row.row_id)
            continue
        prompt_ids = _prompt_ids(row, turn, previous, tokenizer)
        if max_prompt_tokens is not None and len(prompt_ids) > max_prompt_tokens:
            too_long.append(row.row_id)
            continue
        name = request_id(row.row_id, turn)
        requests.append(
            Request(
                request_id=name,
                prompt_ids=prompt_ids,
                sampling=_own_sampling(sampling, row, name),
                category=row.category,
                arrival_s=row.arrival_s,
            )
        )
    return TurnRequests(tuple(requests), tuple(too_long), tuple(unanswered))


def draft_vocab_ranking(
    token_sequences: Iterable[Sequence[int]], vocab_size: int
) -> tuple[int, ...]:
    """Token ids seen in the sequences by falling count, ties by rising id. EngineInputError for an
    id outside the vocabulary.
    """
    ranked = rank_by_frequency(token_sequences)
    wrong = [token for token in ranked if not 0 <= token < vocab_size]
    if wrong:
        raise EngineInputError(
            f"token id {wrong[0]} is outside the vocabulary of {vocab_size}: tokenise with the"
            " target's own tokenizer"
        )
    return ranked


def _own_sampling(sampling: Sampling, row: WorkloadRow, name: str) -> Sampling:
    max_tokens = min(sampling.max_tokens, row.max_tokens or sampling.max_tokens)
    return replace(
        sampling,
        seed=request_seed(sampling.seed, name),
        max_tokens=max_tokens,
        min_tokens=min(sampling.min_tokens, max_tokens),
    )


def _prompt_ids(
    row: WorkloadRow, turn: int, previous: Mapping[str, str], tokenizer: ChatTokenizer | None
) -> tuple[int, ...]:
    if row.prompt_ids:
        return row.prompt_ids
    if tokenizer is None:
        raise EngineInputError(
            f"row {row.row_id!r} (line {row.line}) is text and the target has no tokenizer: add the"
            " tokenizer's files to the model folder, or give prompt_ids"
        )
    if row.text is not None:
        ids = tokenizer.encode(row.text, add_special_tokens=True)
    else:
        ids = _chat_ids(row, _messages(row, turn, previous), tokenizer)
    if not ids:
        raise EngineInputError(
            f"row {row.row_id!r} (line {row.line}) is no token at all to this tokenizer: leave the"
            " row out"
        )
    return tuple(ids)


def _messages(row: WorkloadRow, turn: int, previous: Mapping[str, str]) -> list[Message]:
    messages = list(row.history)
    for earlier in range(1, turn):
        messages.append(Message("user", row.turns[earlier - 1]))
        messages.append(Message("assistant", previous[request_id(row.row_id, earlier)]))
    messages.append(Message("user", row.turns[turn - 1]))
    return messages


def _chat_ids(row: WorkloadRow, messages: list[Message], tokenizer: ChatTokenizer) -> list[int]:
    if not tokenizer.chat_template:
        lines = [f"{message.role.capitalize()}: {message.content}" for message in messages]
        return tokenizer.encode("\n".join([*lines, "Assistant:"]), add_special_tokens=True)
    try:
        text = _templated(messages, tokenizer)
    except TemplateSyntaxError as error:
        raise EngineInputError(
            f"the model's chat template is no Jinja template ({error.message}, line"
            f" {error.lineno}): copy the tokenizer's files again"
        ) from error
    except _REFUSALS as refusal:
        try:
            text = _templated(_without_system(messages), tokenizer)
        except _REFUSALS:
            raise EngineInputError(
                f"row {row.row_id!r} (line {row.line}) is refused by the model's chat template"
                f" ({refusal}): let user and assistant take turns, the user first"
            ) from refusal
    return tokenizer.encode(text, add_special_tokens=False)


def _templated(messages: list[Message], tokenizer: ChatTokenizer) -> str:
    conversation = [message._asdict() for message in messages]
    return str(
        tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    )


def _without_system(messages: list[Message]) -> list[Message]:
    """The system's text put before the first user message."""
    system = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    first = next(index for index, message in enumerate(rest) if message.role == "user")
    rest[first] = Message("user", "\n\n".join([*system, rest[first].content]))
    return rest
