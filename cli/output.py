"""What the commands print: one JSON document or tables on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import math
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import markup
from rich.console import Console
from rich.table import Table

WIDE = 160  # columns where there is no terminal
_CONTROLS = ("Cc", "Cf", "Cs", "Zl", "Zp")  # also those that turn the direction of a line


@dataclass(frozen=True, slots=True)
class Output:
    """With ``as_json`` stdout carries exactly one JSON document and nothing else."""

    as_json: bool

    def report(self, document: Any, render: Callable[[Console], None]) -> None:
        """Print ``document`` as JSON, or let ``render`` draw it."""
        if self.as_json:
            print(_json_text(plain(document), sys.stdout.encoding or "utf-8"))
        else:
            render(make_console())


def _json_text(value: Any, encoding: str) -> str:
    """JSON that a stream of ``encoding`` takes: readable where it can be, else escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return json.dumps(value, indent=2, allow_nan=False)
    return text


def with_note(document: Mapping[str, Any], note: str | None) -> dict[str, Any]:
    """``document`` with one more of its ``notes``, where there is one."""
    notes = [*document.get("notes", ()), *([] if note is None else [note])]
    return {**document, "notes": notes}


def draw_notes(console: Console, document: Mapping[str, Any]) -> None:
    """The document's notes, one a line."""
    for note in document["notes"]:
        say(console, f"note: {note}")


def say(console: Console, text: str, style: str | None = None) -> None:
    """One line (or more) of plain text, whatever a file or a model put into it."""
    console.print(printable(text, keep="\n"), style=style, markup=False, soft_wrap=True)


def tell(text: str | None) -> None:
    """A note on stderr, where there is one."""
    if text is not None:
        say(make_console(stderr=True), f"note: {text}")


def printable(text: str, keep: str = "") -> str:
    """``text`` with its control and formatting characters as ``repr`` writes them, so that none of
    them reaches a terminal; those of ``keep`` stay.
    """
    return "".join(
        repr(char)[1:-1] if unicodedata.category(char) in _CONTROLS and char not in keep else char
        for char in text
    )


def make_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; wide enough not to fold tables in a file or a pipe."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=WIDE)


def plain(value: Any) -> Any:
    """``value`` as JSON types: tuples as lists, keys as text, numbers that JSON lacks as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> Table:
    """A plain table. A column whose header starts with ``>`` is aligned right, without the sign."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        made.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        made.add_row(*(markup.escape(printable(cell(item))) for item in row))  # one line each
    return made


def facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Two columns without a header: what, value."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs:
        made.add_row(escape(name), escape(cell(value)))
    return made


def cell(value: object) -> str:
    """One value as text: ``-`` for None, three significant decimals for a float."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def ratio_text(ratio: float | None, low: float | None, high: float | None) -> str:
    """``1.42x (1.31 to 1.55)``."""
    if ratio is None:
        return "-"
    if low is None or high is None or not math.isfinite(low) or not math.isfinite(high):
        return f"{ratio:.2f}x"  # so few prompts that nothing bounds it
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})"


def escape(text: str) -> str:
    """Text that rich prints as it is, without control characters."""
    return markup.escape(printable(text, keep="\n"))
