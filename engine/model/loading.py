"""From a name or a path to a target that runs: checks, model, tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig

from draftsmith.engine.errors import CapacityError, EngineInputError, UnsupportedError
from draftsmith.engine.job import TargetRef, WeightForm
from draftsmith.engine.model.checkpoint import (
    Checkpoint,
    TensorsCheckpoint,
    fingerprint,
    open_checkpoint,
)
from draftsmith.engine.model.config import decoder_families, eos_ids, parse_config
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.model.gguf_file import inspect_gguf, quiet_transformers, read_gguf
from draftsmith.engine.model.locating import locate, resolve_device
from draftsmith.engine.model.model import Model
from draftsmith.engine.model.packing import Packer, Packing, choose_packing
from draftsmith.engine.model.refusals import refuse_unsupported
from draftsmith.engine.model.weights import assemble

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """``tokenizer`` is a transformers tokenizer. ``source_path`` is the folder or GGUF file that
    was read.
    """

    model: Model
    tokenizer: Any
    source_path: Path


@dataclass(frozen=True, slots=True)
class _Placement:
    dtype: torch.dtype
    device: torch.device
    pack: Packer
    form: WeightForm


def load_target(ref: TargetRef) -> LoadedTarget:
    """Load ``ref.path``: a checkpoint folder, a GGUF file, ``smollm2`` or a Hugging Face id.

    Raises EngineInputError (bad path or file), UnsupportedError (a model that is refused by name),
    EngineEnvironmentError (no such device, not enough memory, no network).
    """
    if ref.dtype not in _DTYPES:
        raise EngineInputError(f"dtype {ref.dtype!r} is not one of {', '.join(_DTYPES)}")
    dtype, device = _DTYPES[ref.dtype], resolve_device(ref.device)
    path = locate(ref.path)
    pack = choose_packing(ref.weights, dtype, device)
    placement = _Placement(dtype, device, pack, ref.weights)
    model = _load_gguf(path, placement) if path.is_file() else _load_folder(path, placement)
    return LoadedTarget(model=model, tokenizer=load_tokenizer(path), source_path=path)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a checkpoint folder or GGUF file; EngineInputError when it has none."""
    try:
        with quiet_transformers():
            if path.is_file():
                return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            return AutoTokenizer.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the tokenizers library raises bare ones for a bad file
        raise EngineInputError(
            f"{path} has no usable tokenizer ({_first_line(error)}); put the model's"
            " tokenizer.json and"
            " tokenizer_config.json beside its weights"
        ) from error


def _load_folder(folder: Path, placement: _Placement) -> Model:
    raw = _read_config(folder)
    refuse_unsupported(raw)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises bare ones for values it does not expect
        raise UnsupportedError(
            f"transformers cannot read {folder / 'config.json'}: {_first_line(error)}"
        ) from error
    name, eos = folder.resolve().name, _eos_of(folder, config)
    with open_checkpoint(folder) as checkpoint:
        _check_memory(name, sum(checkpoint.numels.values()), placement)
        digest = fingerprint(raw, checkpoint)
        if config.model_type in decoder_families():
            return _decoder(name, config, eos, digest, checkpoint, placement)
    if placement.form == "bf12":
        raise UnsupportedError(
            f"weights=bf12 packs the matrices of our own decoder; a {config.model_type} runs"
            " through transformers: use weights=plain"
        )
    # Imported when needed: it brings in most of transformers, some seconds of start-up.
    from draftsmith.engine.model.fallback import load_fallback

    return load_fallback(
        folder,
        dtype=placement.dtype,
        device=placement.device,
        fingerprint=digest,
        eos_token_ids=eos,
    )


def _load_gguf(path: Path, placement: _Placement) -> Model:
    _check_memory(path.name, inspect_gguf(path), placement)
    contents = read_gguf(path, placement.dtype)
    config = contents.config
    if config.model_type not in decoder_families():
        raise UnsupportedError(
            f"a GGUF file of model type {config.model_type} is not supported (only"
            f" {', '.join(decoder_families())}); use the model's safetensors folder"
        )
    checkpoint = TensorsCheckpoint(contents.tensors)
    digest = fingerprint(config.to_dict(), checkpoint)
    eos = eos_ids(config.eos_token_id)
    return _decoder(path.stem, config, eos, digest, checkpoint, placement)


def _decoder(
    name: str,
    config: PretrainedConfig,
    eos: tuple[int, ...],
    digest: str,
    checkpoint: Checkpoint,
    placement: _Placement,
) -> Decoder:
    parsed = replace(parse_config(config), eos_token_ids=eos)
    weights = assemble(
        parsed,
        checkpoint.read,
        dtype=placement.dtype,
        device=placement.device,
        pack=placement.pack,
    )
    if isinstance(placement.pack, Packing) and placement.form == "bf12":
        placement.pack.check(name)
    return Decoder(parsed, weights, name=name, fingerprint=digest)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise EngineInputError(
            f"{folder} has no config.json; name the folder that holds config.json, the"
            " tokenizer and the weights"
        )
    try:
        raw = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise EngineInputError(f"{file} is not JSON ({error}); copy it again") from error
    if not isinstance(raw, dict):
        raise EngineInputError(f"{file} holds a {type(raw).__name__}, expected an object")
    return raw


def _eos_of(folder: Path, config: PretrainedConfig) -> tuple[int, ...]:
    """EOS ids as ``generate`` takes them: the generation config's if it names any, else the
    model's.
    """
    if (folder / "generation_config.json").is_file():
        try:
            found = eos_ids(GenerationConfig.from_pretrained(folder).eos_token_id)
        except (OSError, ValueError, TypeError) as error:
            raise EngineInputError(
                f"{folder / 'generation_config.json'} cannot be read ({_first_line(error)});"
                " fix or remove it"
            ) from error
        if found:
            return found
    return eos_ids(config.eos_token_id)


def _check_memory(name: str, num_weights: int, placement: _Placement) -> None:
    needed = num_weights * placement.dtype.itemsize
    if placement.device.type == "cuda":
        available, _ = torch.cuda.mem_get_info(placement.device)
    else:
        available = psutil.virtual_memory().available
    if needed > available:
        raise CapacityError(
            f"the weights of {name} need {needed / 1e9:.1f} GB on {placement.device}, "
            f"{available / 1e9:.1f} GB are free; free memory, use a 16-bit dtype or a smaller model"
        )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
