"""llama.cpp's own HTTP server, for ``serve.py``: plain, or with one of its drafters.

Settings: ``server`` (the program; ``llama-server`` on the path without it), ``model`` (a GGUF file;
the target's path where that is one); everything else becomes a flag of the server: ``{"spec-type":
"ngram-simple"}`` is ``--spec-type ngram-simple``, true a flag alone. Requests of a turn are sent
together, as many as the concurrency; every prompt is computed anew. It computes in the numbers of
its file.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_S = 120.0
POLL_S = 0.2
PR_SET_PDEATHSIG = 1


class Engine:
    def __init__(self, order: dict[str, Any]) -> None:
        settings = dict(order["settings"])
        path = Path(settings.pop("model", order["model"]))
        if path.suffix != ".gguf":
            raise ValueError(
                f'{path.name} is no GGUF file: name one in the settings, {{"model": "FILE"}}'
            )
        name = settings.pop("server", "llama-server")
        program = shutil.which(os.path.expanduser(name))
        if program is None:
            raise ValueError(
                f"{name} is no program: name llama.cpp's server in the settings,"
                ' {"server": "FILE"}'
            )
        self._concurrency = order["concurrency"]
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        threads, places = str(order["threads"]), str(self._concurrency)
        self._server = subprocess.Popen(
            [
                *(program, "--model", str(path), "--host", "127.0.0.1", "--port", str(port)),
                *("--threads", threads, "--threads-batch", threads, "--parallel", places),
                *("--ctx-size", str(order["context"] * self._concurrency)),
                *_flags(settings),
            ],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        self._await_start()
        self.versions = {"llama.cpp": str(self._asked("/props").get("build_info", "unknown"))}
        self.note = path.name

    def generate(
        self, prompts: list[list[int]], max_tokens: int, stop_ids: list[int]
    ) -> tuple[list[list[int]], float | None]:
        """Outputs in order, and the server's own seconds of prefill where requests run alone."""

        def one(prompt: list[int]) -> tuple[list[int], float]:
            order = {
                "prompt": prompt,
                "n_predict": max_tokens,
                "temperature": 0.0,
                "top_k": 1,
                "repeat_penalty": 1.0,
                "cache_prompt": False,
                "return_tokens": True,
            }
            made = self._asked("/completion", order)
            tokens = [int(token) for token in made["tokens"]]
            if made.get("stop_type") == "eos" and stop_ids and tokens[-1:] != stop_ids[:1]:
                tokens.append(stop_ids[0])  # which it does not return
            return tokens, made["timings"]["prompt_ms"] / 1e3

        with ThreadPoolExecutor(self._concurrency) as pool:
            made = list(pool.map(one, prompts))
        alone = self._concurrency == 1
        return [tokens for tokens, _ in made], sum(s for _, s in made) if alone else None

    def _asked(self, path: str, order: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if order is None else json.dumps(order).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _await_start(self) -> None:
        end = time.monotonic() + START_S
        while True:
            if self._server.poll() is not None:
                raise RuntimeError(f"the server ended with exit code {self._server.returncode}")
            try:
                self._asked("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > end:
                    self._server.kill()
                    raise RuntimeError(f"the server was not ready in {START_S:g} s") from None
            time.sleep(POLL_S)


def _flags(settings: dict[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
