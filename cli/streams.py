"""The command's own stdout and stderr: what happens when whoever read them is gone.

Nobody reads stdout any more: the command ends quietly, with ``CLOSED_PIPE``. Nobody reads stderr:
it goes on without, since only progress and notes are lost.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

CLOSED_PIPE = 141  # what a shell reports for a program that ended by SIGPIPE


def guard_streams() -> None:
    """Put streams of that kind in the place of ``sys.stdout`` and ``sys.stderr``; what the encoding
    of stdout lacks is escaped. A stream that was closed from the start goes nowhere.
    """
    sys.stdout = _guarded(sys.stdout, errors="backslashreplace", ends=True)
    sys.stderr = _guarded(sys.stderr, errors="backslashreplace", ends=False)


class _Guarded(io.TextIOWrapper):
    """``ends``: whether the command ends when the reader is gone."""

    ends = False

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._abandon()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._abandon()

    def _abandon(self) -> None:
        """What is still buffered, and all that comes, goes nowhere."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        if self.ends:
            raise SystemExit(CLOSED_PIPE)


def _guarded(stream: TextIO | None, *, errors: str, ends: bool) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    made = _Guarded(
        stream.buffer,
        encoding=stream.encoding,
        errors=errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    made.ends = ends
    return made
