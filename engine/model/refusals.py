"""Checkpoints that the engine refuses before it reads a weight, each by the name of what is
missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from draftsmith.engine.errors import EngineInputError, UnsupportedError

# Model types whose layers (all or some) carry a state from token to token instead of keys and
# values.
_RECURRENT_TYPES = frozenset(
    [
        "bamba",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "jamba",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "mamba",
        "mamba2",
        "minimax",
        "nemotron_h",
        "olmo_hybrid",
        "plamo2",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "recurrent_gemma",
        "rwkv",
        "xlstm",
        "zamba",
        "zamba2",
    ]
)
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_RECURRENT_LAYERS = frozenset(
    {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "hybrid"}
)


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise UnsupportedError when ``config`` (a ``config.json``) asks for what no model class here
    does: quantised weights, recurrent state, or an encoder; EngineInputError for layer types that
    are no list.
    """
    family = config.get("model_type", "unknown")
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if quantisation:
        method = "an unnamed method"
        if isinstance(quantisation, Mapping):
            method = _method_name(quantisation)
        raise UnsupportedError(
            f"weights quantised by {method} are not supported; use the bf16, fp16 or fp32"
            " checkpoint of the same"
            " model, or a GGUF file (dequantised on load)"
        )
    layer_types = config.get("layer_types") or config.get("layers_block_type") or ()
    if not isinstance(layer_types, list | tuple):
        raise EngineInputError(f"layer_types of {family} is {layer_types!r}; it must be a list")
    recurrent = sorted(_RECURRENT_LAYERS.intersection(map(str, layer_types)))
    if family in _RECURRENT_TYPES or recurrent or "ssm_cfg" in config:
        which = f" (layer type {recurrent[0]})" if recurrent else ""
        raise UnsupportedError(
            f"model type {family}{which} needs recurrent state, which draftsmith's cache does"
            " not hold"
        )
    if config.get("is_encoder_decoder"):
        raise UnsupportedError(
            f"model type {family} is an encoder-decoder; draftsmith drives decoder-only models"
        )


def refuse_unused_layers(names: Iterable[str], num_layers: int) -> None:
    """Raise EngineInputError when a tensor among ``names`` belongs to a layer that a decoder of
    ``num_layers`` does not have: the model would run, and be another one.
    """
    stored = [int(match[1]) for name in names if (match := _LAYER.match(name))]
    if max(stored, default=-1) >= num_layers:
        raise EngineInputError(
            f"the checkpoint holds layers up to model.layers.{max(stored)}, its config says"
            f" num_hidden_layers {num_layers}; config and weights do not belong together: copy or"
            " download both again"
        )


def _method_name(quantisation: Mapping[str, Any]) -> str:
    method = str(quantisation.get("quant_method", "an unnamed method"))
    if method == "bitsandbytes":
        bits = "4-bit" if quantisation.get("load_in_4bit") else "8-bit"
        return f"bitsandbytes ({bits})"
    known = {"awq": "AWQ", "gptq": "GPTQ", "fp8": "FP8", "fbgemm_fp8": "FP8 (fbgemm)"}
    return known.get(method, method)
