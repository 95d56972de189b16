"""The peer's end of the line protocol: loads one engine script and answers JSON lines.

Run as ``python serve.py ENGINE_SCRIPT MODULE ...`` by ``workers/peers/process.py``, with whatever
Python has the engine. One JSON object a line on stdin, one answer a line on what was stdout; all
that the engine prints goes to stderr.

- ``{"op": "load", model, dtype, device, threads, context, concurrency, settings}`` is answered by
  ``{"versions": {...}, "note": "..."}``, or ``{"absent": [modules that are not installed]}``
- ``{"op": "generate", prompts: [[id, ...], ...], max_tokens, stop_ids}`` (greedy) is answered by
  ``{"outputs": [[id, ...], ...], "seconds": s, "prefill_s": s or null}``
- ``{"error": "..."}`` answers what went wrong, ``{"refused": "..."}`` what the engine script itself
  says of the order: a whole sentence, to which the log adds nothing.

``seconds`` is ``time.perf_counter`` around the engine's own call, without garbage collection, as
draftsmith times itself. The process ends when stdin closes, and on Linux with its parent even while
it is stopped.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def main(script: str, modules: list[str]) -> None:
    _die_with_parent()
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or ".") != here]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    orders = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for answer in _answers(orders, script, modules):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answers(orders: Any, script: str, modules: list[str]) -> Iterator[dict[str, Any]]:
    engine: Any = None
    for line in orders:
        try:
            order = json.loads(line)
            if order["op"] == "load":
                absent = [name for name in modules if importlib.util.find_spec(name) is None]
                if absent:
                    yield {"absent": absent}
                    continue
                engine = _engine_class(script)(order)
                yield {"versions": engine.versions, "note": engine.note}
            else:
                yield _generate(engine, order)
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            if isinstance(error, ValueError) and _raised_in(error) == script:
                yield {"refused": first}
                continue
            traceback.print_exc()
            yield {"error": f"{type(error).__name__}: {first}"}


def _raised_in(error: BaseException) -> str:
    """The file whose code raised it."""
    return traceback.extract_tb(error.__traceback__)[-1].filename


def _generate(engine: Any, order: dict[str, Any]) -> dict[str, Any]:
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        outputs, prefill_s = engine.generate(
            order["prompts"], order["max_tokens"], order["stop_ids"]
        )
        seconds = time.perf_counter() - begin
    finally:
        gc.enable()
    return {"outputs": outputs, "seconds": seconds, "prefill_s": prefill_s}


def _engine_class(script: str) -> Any:
    spec = importlib.util.spec_from_file_location("peer_engine", script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_engine"] = module
    spec.loader.exec_module(module)
    return module.Engine


def _die_with_parent() -> None:
    """A stopped process does not see its stdin close: the kernel kills it instead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
