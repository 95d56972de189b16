"""Peers made for tests: programs that stand in for a peer's Python and speak the line protocol.

A behaviour is a Python body that sees ``order`` (a dict) and ``count`` (orders so far, from 1) and
calls ``answer(value)``.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

HONEST = """
if order["op"] == "load":
    answer({"versions": {"fake": "1"}, "note": "made for a test"})
else:
    answer({
        "outputs": [[p[-1], p[0], 7][: order["max_tokens"]] for p in order["prompts"]],
        "seconds": 0.25,
        "prefill_s": 0.05,
    })
"""

_PROGRAM = """#!{python}
import json, os, signal, sys, threading, time

def answer(value):
    print(json.dumps(value), flush=True)

for count, line in enumerate(sys.stdin, start=1):
    order = json.loads(line)
{body}
"""


def fake_python(path: Path, body: str = HONEST) -> str:
    """An executable that ignores its arguments and behaves as ``body`` says."""
    indented = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    path.write_text(_PROGRAM.format(python=sys.executable, body=indented))
    path.chmod(0o755)
    return str(path)
