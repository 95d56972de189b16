"""From a name or a path to a target that runs: checks, model, tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoTokenizer, GenerationConfig, PretrainedConfig

from draftsmith.engine.decode import prefill
from draftsmith.engine.errors import CapacityError, EngineInputError, UnsupportedError, reason_of
from draftsmith.engine.job import TargetRef, WeightForm
from draftsmith.engine.model.checkpoint import (
    Checkpoint,
    TensorsCheckpoint,
    fingerprint,
    open_checkpoint,
)
from draftsmith.engine.model.config import decoder_families, eos_ids, parse_config
from draftsmith.engine.model.config_file import has_mark, read_config, read_raw_config
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.model.gguf_file import inspect_gguf, quiet_transformers, read_gguf
from draftsmith.engine.model.locating import locate, resolve_device
from draftsmith.engine.model.model import Model
from draftsmith.engine.model.packing import Packer, Packing, choose_packing
from draftsmith.engine.model.refusals import refuse_unsupported, refuse_unused_layers
from draftsmith.engine.model.weights import assemble

_PROBED_TOKENS = 8
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

    Raises EngineInputError (bad path or file, numbers that overflow), UnsupportedError (a model
    that is refused by name), EngineEnvironmentError (no such device, not enough memory, no
    network).
    """
    if ref.dtype not in _DTYPES:
        raise EngineInputError(f"dtype {ref.dtype!r} is not one of {', '.join(_DTYPES)}")
    dtype, device = _DTYPES[ref.dtype], resolve_device(ref.device)
    path = locate(ref.path)
    pack = choose_packing(ref.weights, dtype, device)
    placement = _Placement(dtype, device, pack, ref.weights)
    model = _load_gguf(path, placement) if path.is_file() else _load_folder(path, placement)
    _check_logits(model)
    return LoadedTarget(model=model, tokenizer=load_tokenizer(path), source_path=path)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a checkpoint folder or GGUF file; EngineInputError when it has none."""
    try:
        with quiet_transformers():
            if path.is_file():
                return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
            config = read_config(path) if has_mark(path) else None
            return AutoTokenizer.from_pretrained(path, local_files_only=True, config=config)
    except Exception as error:  # the tokenizers library raises bare ones for a bad file
        raise EngineInputError(
            f"{path} has no usable tokenizer ({reason_of(error)}); put the model's"
            " tokenizer.json and"
            " tokenizer_config.json beside its weights"
        ) from error


def _load_folder(folder: Path, placement: _Placement) -> Model:
    raw = read_raw_config(folder)
    refuse_unsupported(raw)
    config = read_config(folder)
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
        config,
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
    refuse_unused_layers(checkpoint.numels, parsed.num_layers)
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


def _eos_of(folder: Path, config: PretrainedConfig) -> tuple[int, ...]:
    """EOS ids as ``generate`` takes them: the generation config's if it names any, else the
    model's.
    """
    if (folder / "generation_config.json").is_file():
        try:
            found = eos_ids(GenerationConfig.from_pretrained(folder).eos_token_id)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise EngineInputError(
                f"{folder / 'generation_config.json'} cannot be read ({reason_of(error)});"
                " fix or remove it"
            ) from error
        if found:
            return found
    return eos_ids(config.eos_token_id)


@torch.inference_mode()
def _check_logits(model: Model) -> None:
    """EngineInputError when no row of a short probe prefers any token: NaN, or all logits equal,
    which is what a norm leaves of numbers whose squares overflow. One such row proves nothing: the
    embedding of an unused token may be all zeros.
    """
    size = model.info.vocab_size
    count = min(_PROBED_TOKENS, size, model.info.max_positions)
    token_ids = [index * (size - 1) // max(1, count - 1) for index in range(count)]
    cache = model.new_cache(num_slots=1, capacity=count)
    logits = model.head(prefill(model, cache, cache.allocate(), token_ids))
    if size > 1 and not bool((logits.amax(-1) > logits.amin(-1)).any()):
        what = "NaN" if bool(logits.isnan().any()) else "all equal"
        raise EngineInputError(
            f"logits of {model.info.name} are {what} after every token tried; the checkpoint or its"
            " dtype overflows: use bfloat16 or float32, or check the checkpoint"
        )


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
