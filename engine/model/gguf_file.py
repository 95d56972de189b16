"""A single GGUF file, dequantised through transformers."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.utils import logging as transformers_logging

from draftsmith.engine.errors import EngineInputError, UnsupportedError

_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class GgufContents:
    """``tensors`` carry transformers' parameter names."""

    config: PretrainedConfig
    tensors: dict[str, torch.Tensor]


def read_gguf(path: Path, dtype: torch.dtype) -> GgufContents:
    """Read and dequantise ``path``, checked by ``inspect_gguf``, to ``dtype``. Raises
    UnsupportedError for an architecture that transformers does not read.
    """
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
            # Weights are read below, straight into their dtype: the config must not ask for packed
            # ones.
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            with torch.device("meta"):
                skeleton = AutoModelForCausalLM.from_config(config)
            parsed = load_gguf_checkpoint(
                str(path), return_tensors=True, model_to_load=skeleton, torch_dtype=dtype
            )
        except (ValueError, KeyError, NotImplementedError) as error:
            raise UnsupportedError(
                f"{path} cannot be read through transformers: {error}"
            ) from error
    config.dtype = dtype
    return GgufContents(config, parsed["tensors"])


def inspect_gguf(path: Path) -> int:
    """Number of weights in ``path``. Raises EngineInputError for a file that is not GGUF, is cut
    off or holds more layers than it names, UnsupportedError for scaled rotary positions.
    """
    from gguf import GGUFReader

    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise EngineInputError(f"{path} is not a GGUF file (it does not begin with 'GGUF')")
    try:
        reader = GGUFReader(path)
        end = max((int(t.data_offset) + int(t.n_bytes) for t in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, TypeError, OSError) as error:
        raise EngineInputError(f"{path} is damaged or cut off ({error}); copy it again") from error
    if end > path.stat().st_size:
        raise EngineInputError(
            f"{path} has {path.stat().st_size} bytes, its header describes {end}; copy it again"
        )
    scaled = [name for name in reader.fields if name.endswith("rope.scaling.type")]
    kinds = {reader.fields[name].contents() for name in scaled} - {"none"}
    if kinds or any(tensor.name.startswith("rope_") for tensor in reader.tensors):
        raise UnsupportedError(
            f"{path} has scaled rotary positions, which transformers does not read from GGUF;"
            " use the model's safetensors checkpoint"
        )
    _check_layers(path, reader)
    return sum(int(tensor.n_elements) for tensor in reader.tensors)


def _check_layers(path: Path, reader: Any) -> None:
    """transformers leaves out the tensors of layers past the file's own count."""
    counts = [field for name, field in reader.fields.items() if name.endswith(".block_count")]
    named = [int(match[1]) for tensor in reader.tensors if (match := _BLOCK.match(tensor.name))]
    if counts and max(named, default=-1) >= int(counts[0].contents()):
        raise EngineInputError(
            f"{path} holds layers up to blk.{max(named)}, its block_count is"
            f" {counts[0].contents()}; its metadata and weights do not belong together: copy or"
            " convert it again"
        )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice from transformers while a file is read. Errors are exceptions,
    so nothing that counts is lost with its standard error (its GGUF bar has no other switch).
    """
    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
