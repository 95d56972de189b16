"""The engine script of llama.cpp's server against a program made for the test that speaks its HTTP:
how it is started, what it is asked, and what is made of the answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.peers.test_engines import ORDER, engine_class

# Counts upwards from the prompt's last token; 9 is the end token, which it does not return.
PROGRAM = """#!{python}
import json, sys, pathlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

pathlib.Path({log!r}).write_text(json.dumps(sys.argv[1:]))
if "--bad" in sys.argv:
    sys.exit(3)

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def tell(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def do_GET(self):
        self.tell({{"build_info": "b1-made"}})

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first = order["prompt"][-1] + 1
        tokens = list(range(first, first + order["n_predict"]))
        kind = "limit"
        if 9 in tokens:
            tokens, kind = tokens[: tokens.index(9)], "eos"
        assert order["cache_prompt"] is False and order["temperature"] == 0.0
        self.tell({{"tokens": tokens, "stop_type": kind, "timings": {{"prompt_ms": 250.0}}}})

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def server(tmp_path: Path) -> str:
    program = tmp_path / "made-server"
    program.write_text(PROGRAM.format(python=sys.executable, log=str(tmp_path / "arguments")))
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def started() -> Iterator[list[Any]]:
    engines: list[Any] = []
    yield engines
    for engine in engines:
        engine._server.kill()
        engine._server.wait()


def test_outputs_come_in_order_with_the_end_token(server: str, started: list[Any]) -> None:
    engine = engine_class("llama_server_engine")({**ORDER, "settings": {"server": server}})
    started.append(engine)
    assert (engine.versions, engine.note) == ({"llama.cpp": "b1-made"}, "m.gguf")
    outputs, prefill_s = engine.generate([[3, 6], [20]], 4, [9])
    assert outputs == [[7, 8, 9], [21, 22, 23, 24]]
    assert prefill_s == 0.5


def test_settings_become_flags_and_requests_run_together(
    server: str, started: list[Any], tmp_path: Path
) -> None:
    settings = {"server": server, "model": "/other/n.gguf", "spec-type": "ngram-simple"}
    order = {**ORDER, "concurrency": 4, "settings": {**settings, "no_webui": True, "draft_max": 8}}
    engine = engine_class("llama_server_engine")(order)
    started.append(engine)
    words = json.loads((tmp_path / "arguments").read_text())
    flags = dict(zip(words[::2], words[1::2], strict=False))
    assert (flags["--model"], flags["--parallel"]) == ("/other/n.gguf", "4")
    assert (flags["--ctx-size"], flags["--threads"], flags["--threads-batch"]) == ("2048", "2", "2")
    assert words[-5:] == ["--spec-type", "ngram-simple", "--no-webui", "--draft-max", "8"]
    outputs, prefill_s = engine.generate([[token] for token in range(30, 40)], 2, [9])
    assert outputs == [[token + 1, token + 2] for token in range(30, 40)]
    assert prefill_s is None


def test_what_cannot_start_is_told(server: str) -> None:
    engine = engine_class("llama_server_engine")
    with pytest.raises(ValueError, match="no-such-server is no program: name llama.cpp's server"):
        engine({**ORDER, "settings": {"server": "no-such-server"}})
    with pytest.raises(ValueError, match="is no GGUF file"):
        engine({**ORDER, "model": "/models/folder", "settings": {"server": server}})
    with pytest.raises(RuntimeError, match="ended with exit code 3"):
        engine({**ORDER, "settings": {"server": server, "bad": True}})
