"""One record of a workload file, in any of the formats that we read, as a ``WorkloadRow``.

The first of these keys that is present (and not null) decides how a record is read:

``messages``       chat messages ``[{role, content}]``: the last user message is asked, what follows
                   it (a reference answer) is dropped
``conversations``  ShareGPT ``[{from, value}]``: likewise, the history up to the last human turn
``turns``          Spec-Bench: user messages, each after the target's own answer to the one before
``prompt_ids``     token ids, used as they are
``prompt``         a string to complete without a chat template; integers are ``prompt_ids``
``body``           an OpenAI batch line: the request in ``body`` holds ``messages`` or ``prompt``

Beside it: ``id``, ``question_id`` or ``custom_id``; ``category``; ``max_tokens`` (or
``max_completion_tokens``); ``timestamp``, in seconds or ISO 8601 (UTC when it names no zone). Other
keys are ignored. A record's own sampling parameters are not used, since a deployment has one
sampling; rows that carry some are counted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

MAX_ID_LENGTH = 200  # what is stored may have 255: the rest is for suffixes of ours
_ID_KEYS = ("id", "question_id", "custom_id")
_SAMPLING_KEYS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
_SHOWN_LENGTH = 60
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SPEAKERS = {
    **{"system": "system", "human": "user", "user": "user"},
    **{"gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant", "bing": "assistant"},
    "bard": "assistant",
}


class RecordError(ValueError):
    """What is wrong with one record, and the fix; the reader adds file and line."""


class Message(NamedTuple):
    """``role`` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """One prompt: ``prompt_ids``, or else ``text``, or else a chat of ``history`` (what comes
    before, perhaps empty) and ``turns``, user messages that are asked one after the other.
    ``arrival_s`` is relative to the earliest row of the file. ``digest`` names the content alone.
    """

    row_id: str
    line: int
    digest: str
    category: str = ""
    prompt_ids: tuple[int, ...] = ()
    text: str | None = None
    history: tuple[Message, ...] = ()
    turns: tuple[str, ...] = ()
    max_tokens: int | None = None
    arrival_s: float | None = None
    has_own_sampling: bool = False

    @property
    def num_turns(self) -> int:
        return max(1, len(self.turns))


class _Content(NamedTuple):
    prompt_ids: tuple[int, ...] = ()
    text: str | None = None
    history: tuple[Message, ...] = ()
    turns: tuple[str, ...] = ()

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self, ensure_ascii=True).encode()).hexdigest()


def parse_record(record: object, line: int) -> WorkloadRow:
    """The row that ``record`` (decoded JSON) stands for. ``row_id`` falls back to a name made of
    the content, which does not change when lines move. RecordError names what is wrong.
    """
    if not isinstance(record, dict):
        raise RecordError(f"holds {_kind(record)}, not a JSON object: write one object a line")
    outer = record
    if not any(record.get(key) is not None for key in _READERS) and "body" in record:
        record = record["body"]
        if not isinstance(record, dict):
            raise RecordError(f"'body' is {_kind(record)}: it must be the request, a JSON object")
    key = next((key for key in _READERS if record.get(key) is not None), None)
    if key is None:
        raise RecordError(
            f"has no prompt (its keys: {_shown(', '.join(record))}): give one of"
            f" {', '.join(_READERS)} or an OpenAI batch 'body'"
        )
    content = _READERS[key](record[key])
    digest = content.digest()
    category = outer.get("category")
    if category is not None and not isinstance(category, str):
        raise RecordError(f"'category' is {_kind(category)}: it must be a string")
    return WorkloadRow(
        row_id=_identity(outer) or f"p-{digest[:12]}",
        line=line,
        digest=digest,
        category="" if category is None else _name(category, "category"),
        max_tokens=_max_tokens(record),
        arrival_s=_timestamp(outer.get("timestamp")),
        has_own_sampling=any(record.get(name) is not None for name in _SAMPLING_KEYS),
        **content._asdict(),
    )


def _identity(record: Mapping[str, Any]) -> str | None:
    """The record's own id; None when it has none."""
    identity = next((record[name] for name in _ID_KEYS if record.get(name) is not None), None)
    if identity is None:
        return None
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise RecordError(f"its id {_shown(identity)} is neither a string nor an integer")
    name = _name(str(identity), "id")
    if len(name) > MAX_ID_LENGTH:
        raise RecordError(
            f"its id {_shown(name)} has {len(name)} characters: use at most {MAX_ID_LENGTH}"
        )
    return name


def _read_messages(value: object) -> _Content:
    return _chat(value, "messages", "role", "content", _ROLES)


def _read_conversations(value: object) -> _Content:
    return _chat(value, "conversations", "from", "value", _SPEAKERS)


def _chat(
    value: object, key: str, role_key: str, text_key: str, roles: Mapping[str, str]
) -> _Content:
    messages = []
    for number, entry in enumerate(_list(value, key)):
        where = f"{key}[{number}]"
        if not isinstance(entry, dict):
            raise RecordError(f"{where} is {_kind(entry)}: it must be an object")
        name = entry.get(role_key)
        role = roles.get(name) if isinstance(name, str) else None
        if role is None:
            raise RecordError(
                f"{where}.{role_key} is {_shown(name)}: it must be one of {', '.join(roles)}"
            )
        if entry.get("tool_calls"):
            raise RecordError(f"{where} calls tools, which is not supported: leave the row out")
        messages.append(Message(role, _text(entry.get(text_key), f"{where}.{text_key}")))
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages:
        raise RecordError(f"{key} asks nothing: it needs a message of the user")
    if not messages[-1].content.strip():
        raise RecordError(f"the last user message of {key} is an empty prompt: give it text")
    return _Content(history=tuple(messages[:-1]), turns=(messages[-1].content,))


def _read_turns(value: object) -> _Content:
    turns = [_text(turn, f"turns[{i}]") for i, turn in enumerate(_list(value, "turns"))]
    for number, turn in enumerate(turns):
        if not turn.strip():
            raise RecordError(f"turns[{number}] is an empty prompt: give it text")
    return _Content(turns=tuple(turns))


def _read_prompt_ids(value: object) -> _Content:
    ids = _list(value, "prompt_ids")
    for number, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise RecordError(f"prompt_ids[{number}] is {_shown(token)}: it must be a token id")
    return _Content(prompt_ids=tuple(ids))


def _read_prompt(value: object) -> _Content:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]  # OpenAI allows a list of prompts
    if isinstance(value, list):
        if any(isinstance(part, str | list) for part in value):
            raise RecordError(f"'prompt' holds {len(value)} prompts: write one a line")
        return _read_prompt_ids(value)
    text = _text(value, "prompt")
    if not text.strip():
        raise RecordError("'prompt' is empty: give it text")
    return _Content(text=text)


_READERS: dict[str, Callable[[object], _Content]] = {
    "messages": _read_messages,
    "conversations": _read_conversations,
    "turns": _read_turns,
    "prompt_ids": _read_prompt_ids,
    "prompt": _read_prompt,
}


def _list(value: object, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"'{key}' is {_kind(value)}: it must be a list")
    if not value:
        raise RecordError(f"'{key}' is an empty list: an empty prompt asks nothing")
    return value


def _text(value: object, where: str) -> str:
    """A string, or the texts of OpenAI's content parts put together."""
    if isinstance(value, list):
        return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(value))
    if not isinstance(value, str):
        raise RecordError(f"{where} is {_kind(value)}: it must be a string")
    return _sound(value, where)


def _part(part: object, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else part
        raise RecordError(f"{where} is of type {_shown(kind)}: only parts of type 'text' are read")
    if not isinstance(part.get("text"), str):
        raise RecordError(f"{where}.text is {_kind(part.get('text'))}: it must be a string")
    return _sound(part["text"], where)


def _sound(text: str, where: str) -> str:
    """``text``, unless it holds half of a surrogate pair, which no tokenizer can read."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise RecordError(f"{where} holds half of a surrogate pair (\\ud800..\\udfff): repair it")
    return text


def _name(text: str, where: str) -> str:
    """``text``, unless it cannot be stored as it is: names are compared with what was stored."""
    if "\x00" in text:
        raise RecordError(f"its {where} {_shown(text)} holds a NUL (\\u0000): leave it out")
    return _sound(text, where)


def _max_tokens(record: Mapping[str, Any]) -> int | None:
    keys = ("max_tokens", "max_completion_tokens")
    key = next((key for key in keys if record.get(key) is not None), None)
    if key is None:
        return None
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RecordError(f"'{key}' is {_shown(value)}: it must be an integer, at least 1")
    return value


def _timestamp(value: object) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
            if math.isfinite(seconds):
                return seconds
        elif isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        pass
    raise RecordError(
        f"'timestamp' is {_shown(value)}: give seconds or ISO 8601, say 2025-01-31T08:00:00Z"
    )


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return _kind(value)
    if isinstance(value, str) and len(value) > _SHOWN_LENGTH:
        return f"{ascii(value[:_SHOWN_LENGTH])}..."
    text = ascii(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."
