"""The engines that ``bench`` can run beside ours, and how one is asked for."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.workers.errors import WorkerInputError

ENGINES = Path(__file__).resolve().parent / "engines"
COUNTS = {"prompt_lookup_num_tokens", "max_matching_ngram_size", "num_assistant_tokens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerKind:
    """``modules`` must be importable by the peer's Python; ``package`` is what brings them."""

    script: str
    modules: tuple[str, ...]


PEERS: Mapping[str, PeerKind] = {
    "transformers": PeerKind(script="transformers_engine.py", modules=("torch", "transformers")),
    "llama-cpp-python": PeerKind(script="llama_cpp_engine.py", modules=("llama_cpp",)),
    "llama-server": PeerKind(script="llama_server_engine.py", modules=()),
    "vllm": PeerKind(script="vllm_engine.py", modules=("vllm",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSpec:
    """One engine with its settings, and the Python that runs it."""

    kind: str
    settings: Mapping[str, Any]
    python: str

    @property
    def label(self) -> str:
        """The kind and its settings in one line; of a path only its last part."""
        return " ".join([self.kind, *(f"{k}={_brief(v)}" for k, v in self.settings.items())])

    @property
    def command(self) -> tuple[str, ...]:
        kind = PEERS[self.kind]
        serve = str(ENGINES / "serve.py")
        return (self.python, serve, str(ENGINES / kind.script), *kind.modules)


def parse_peers(peers: Sequence[str], pythons: Sequence[str]) -> list[PeerSpec]:
    """``NAME`` or ``NAME:{json}`` each, and ``NAME=PATH`` for the Python of every peer of that name
    (else the one that runs now). WorkerInputError names what is wrong.
    """
    paths = dict(_parse_python(text) for text in pythons)
    specs = []
    for text in peers:
        kind, colon, settings = text.partition(":")
        _check_kind(kind)
        python = paths.get(kind, sys.executable)
        parsed = _parse_settings(text, settings) if colon else {}
        specs.append(PeerSpec(kind=kind, settings=parsed, python=python))
    labels = [spec.label for spec in specs]
    for label in labels:
        if labels.count(label) > 1:
            raise WorkerInputError(f"peer {label!r} is asked for twice; give it once")
    for kind in paths:
        if all(spec.kind != kind for spec in specs):
            raise WorkerInputError(f"--peer-python names {kind!r}, and there is no --peer {kind}")
    return specs


def _check_kind(kind: str) -> None:
    if kind not in PEERS:
        raise WorkerInputError(f"peer {kind!r} is not known: use {', '.join(PEERS)}")


def _parse_settings(text: str, settings: str) -> dict[str, Any]:
    try:
        value = json.loads(settings)
    except (ValueError, RecursionError) as error:
        raise WorkerInputError(
            f"the settings of --peer {text!r} are not JSON ({error}): write for example "
            "'transformers:{\"prompt_lookup_num_tokens\": 10}'"
        ) from error
    if not isinstance(value, dict):
        raise WorkerInputError(f"the settings of --peer {text!r} must be a JSON object")
    for name in COUNTS & value.keys():
        if type(value[name]) is not int or value[name] < 1:
            raise WorkerInputError(
                f"{name} of --peer {text!r} is {value[name]!r}: it must be a whole number, at "
                "least 1"
            )
    return value


def _parse_python(text: str) -> tuple[str, str]:
    kind, equals, path = text.partition("=")
    if not equals:
        raise WorkerInputError(f"--peer-python {text!r} must read NAME=PATH, PATH a Python program")
    _check_kind(kind)
    found = shutil.which(os.path.expanduser(path))
    if found is None:
        raise WorkerInputError(
            f"--peer-python {text!r}: {path} is no program; give the python of an environment that"
            f" has {kind}"
        )
    return kind, os.path.abspath(found)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_brief(item)}" for key, item in value.items()) + "}"
    return value.rstrip("/").rsplit("/", 1)[-1] if isinstance(value, str) else json.dumps(value)
