"""The records of a workload file and the lines that they begin on.

A file is JSONL in UTF-8, one JSON object a line, or a single JSON array of objects, as ShareGPT is
published. Only CR, LF and CRLF end a line: U+2028 and its kin may stand inside strings.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.workload_formats import RecordError

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Record(NamedTuple):
    """One record, not yet decoded; ``line`` counts physical lines from 1."""

    line: int
    raw: bytes

    def value(self) -> object:
        """The JSON value; RecordError where the bytes are none."""
        try:
            return json.loads(self.raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise RecordError(
                f"byte {error.start + 1} is not UTF-8: save the file as UTF-8"
            ) from error
        except json.JSONDecodeError as error:
            raise RecordError(
                f"not JSON ({error.msg}, column {error.colno}): write one JSON object a line"
            ) from error
        except (ValueError, RecursionError) as error:
            raise RecordError(_unreadable(error)) from error


def read_text_bytes(path: Path, source: str) -> bytes:
    """The file's bytes without a byte order mark. EngineInputError, naming ``source``, where it is
    no readable regular file or no UTF-8 text by its first look.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise EngineInputError(
                f"workload {source!r} is a directory: name a JSONL file of prompts"
            )
        if not stat.S_ISREG(mode):
            raise EngineInputError(
                f"workload {source!r} is not a regular file: it is read more than once, so save it"
                " to a file first"
            )
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise EngineInputError(
            f"workload {source!r} does not exist: check the path, or use 'builtin'"
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EngineInputError(
            f"workload {source!r} cannot be read ({reason}): check path and permissions"
        ) from error
    if data.startswith(_UTF16):
        raise EngineInputError(f"workload {source!r} is UTF-16 text: save it as UTF-8")
    if b"\0" in data:
        raise EngineInputError(
            f"workload {source!r} is not text (it holds zero bytes): unpack or convert it to JSONL"
        )
    return data.removeprefix(_BOM)


def records(data: bytes, source: str) -> Iterator[Record]:
    """Non-blank lines, or the elements of a file that is one JSON array."""
    if data.lstrip().startswith(b"["):
        yield from _array_elements(data, source)
        return
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            yield Record(number, line.strip().removeprefix(_BOM))


def _array_elements(data: bytes, source: str) -> Iterator[Record]:
    """A fault in the array's own syntax leaves no line to skip, hence EngineInputError."""
    scan = json.JSONDecoder().raw_decode
    try:
        text = data.decode("utf-8")
        line = 1
        counted = 0
        place = _skip_blank(text, text.index("[") + 1)
        more = not text.startswith("]", place)
        while more:
            line += text.count("\n", counted, place)
            counted = place
            end = scan(text, place)[1]
            yield Record(line, text[place:end].encode())
            place = _skip_blank(text, end)
            more = text.startswith(",", place)
            if more:
                place = _skip_blank(text, place + 1)
        if not text.startswith("]", place):
            raise json.JSONDecodeError("Expecting ',' or ']'", text, place)
        if text[place + 1 :].strip():
            raise json.JSONDecodeError("Extra data after the array", text, place + 1)
    except json.JSONDecodeError as error:
        raise EngineInputError(
            f"workload {source!r}, line {error.lineno}: not a JSON array ({error.msg}, column"
            f" {error.colno}): repair it, or write one JSON object a line"
        ) from error
    except (ValueError, RecursionError) as error:
        raise EngineInputError(
            f"workload {source!r} begins like a JSON array but cannot be read: it"
            f" {_unreadable(error)}; or write one JSON object a line"
        ) from error


def _unreadable(error: ValueError | RecursionError) -> str:
    """What is wrong with text that breaks no rule of JSON, and the fix."""
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 at byte {error.start + 1}: save the file as UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deeply: simplify it"
    limit = sys.get_int_max_str_digits()  # the one thing left that the decoder refuses
    return f"holds a whole number of more than {limit} digits: shorten it"


def _skip_blank(text: str, place: int) -> int:
    """The first place from ``place`` on that is not JSON white space."""
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place
