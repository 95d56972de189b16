"""``config.json`` of a checkpoint folder: as plain JSON, and as transformers' configuration."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from draftsmith.engine.errors import EngineInputError, UnsupportedError, reason_of
from draftsmith.engine.model.gguf_file import quiet_transformers

_COUNTS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
)


def parse_json(content: bytes) -> Any:
    """The value of a JSON document, with or without a byte order mark. Raises ValueError for
    anything else, nesting past Python's limit included.
    """
    try:
        return json.loads(content.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError(str(error)) from error


def read_raw_config(folder: Path) -> dict[str, Any]:
    """The object in ``config.json``. EngineInputError when there is none, it is not a JSON object,
    or a size in it is below 1.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise EngineInputError(
            f"{folder} has no config.json; name the folder that holds config.json, the"
            " tokenizer and the weights"
        )
    try:
        raw = parse_json(file.read_bytes())
    except ValueError as error:
        raise EngineInputError(f"{file} is not JSON ({error}); copy it again") from error
    if not isinstance(raw, dict):
        raise EngineInputError(f"{file} holds a {type(raw).__name__}, expected an object")
    for field in _COUNTS:
        value = raw.get(field)
        if isinstance(value, int) and value < 1:
            raise EngineInputError(
                f"{field} in {file} is {value}; it must be at least 1: mend config.json or download"
                " it again"
            )
    return raw


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration as transformers reads it. Raises what ``read_raw_config`` raises, and
    UnsupportedError where transformers does not take it.
    """
    raw = read_raw_config(folder)
    try:
        with quiet_transformers(), TemporaryDirectory() as spare:
            readable = folder
            if has_mark(folder):
                readable = Path(spare)
                (readable / "config.json").write_text(json.dumps(raw), "utf-8")
            return AutoConfig.from_pretrained(readable, local_files_only=True)
    except Exception as error:  # transformers raises bare ones for values it does not expect
        raise UnsupportedError(
            f"transformers cannot read {folder / 'config.json'}: {reason_of(error)}; mend"
            " config.json or download it again"
        ) from error


def has_mark(folder: Path) -> bool:
    """Whether ``config.json`` begins with a byte order mark, which transformers refuses."""
    file = folder / "config.json"
    return file.is_file() and file.read_bytes().startswith(codecs.BOM_UTF8)
