"""Facts of one decoder checkpoint, read from its transformers configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PretrainedConfig

from draftsmith.engine.errors import EngineInputError, UnsupportedError, reason_of
from draftsmith.engine.model.rope_config import RopeConfig, read_ropes

Activation = Literal["silu", "gelu_pytorch_tanh"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """``window`` is the number of positions a row sees, itself included; None = all. ``rope``
    indexes ``DecoderConfig.ropes``; None = no rotation.
    """

    window: int | None = None
    rope: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...]
    norm_eps: float
    activation: Activation
    attention_scale: float
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_offset: bool = False  # weights are stored minus one
    sandwich_norms: bool = False  # norms after attention and feed-forward too
    fused_projections: bool = False  # the checkpoint stores qkv and gate-up as one tensor each
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_scale: float | None = None
    tied_head: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)


def eos_ids(value: object) -> tuple[int, ...]:
    """``eos_token_id`` of a configuration (None, an id or a list of ids), sorted and unique."""
    if value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    if isinstance(value, (list, tuple)):
        return tuple(sorted({int(item) for item in value}))
    raise EngineInputError(f"eos_token_id is {value!r}; it must be an id or a list of ids")


def stated_positions(hf: PretrainedConfig) -> int | None:
    """Positions that the model was made for, by whichever name its family gives them."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(hf, name, None)
        if value is not None:
            return int(value)
    return None


def max_positions(hf: PretrainedConfig) -> int:
    """As ``stated_positions``; UnsupportedError where there are none."""
    positions = stated_positions(hf)
    if positions is None:
        raise UnsupportedError(f"model type {hf.model_type} does not say how many positions it has")
    return positions


def decoder_families() -> tuple[str, ...]:
    """Model types that ``parse_config`` accepts."""
    return tuple(sorted(_FAMILIES))


def parse_config(hf: PretrainedConfig) -> DecoderConfig:
    """Read a transformers configuration of one of ``decoder_families()``.

    Raises UnsupportedError for another model type or a feature of these that the decoder lacks,
    EngineInputError for values that no model has. Semantics follow transformers 5's
    ``modeling_<family>.py``.
    """
    try:
        return _parse(hf)
    except (TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
        raise EngineInputError(
            f"the configuration of this {hf.model_type} has a value that no model has"
            f" ({reason_of(error)}); mend config.json or download it again"
        ) from error


def _parse(hf: PretrainedConfig) -> DecoderConfig:
    family = str(hf.model_type)
    extras = _FAMILIES.get(family)
    if extras is None:
        raise UnsupportedError(
            f"model type {family!r} is not one of the decoder's families"
            f" ({', '.join(decoder_families())})"
        )
    name = getattr(hf, "hidden_activation", None) or getattr(hf, "hidden_act", None)
    if name not in _ACTIVATIONS:
        raise UnsupportedError(
            f"activation {name!r} of {family} is not supported; known: {', '.join(_ACTIVATIONS)}"
        )
    head_dim = int(getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads)
    ropes, rope_of_type = read_ropes(hf, head_dim)
    fields: dict[str, Any] = {
        "family": family,
        "vocab_size": int(hf.vocab_size),
        "hidden_size": int(hf.hidden_size),
        "intermediate_size": int(hf.intermediate_size),
        "num_heads": int(hf.num_attention_heads),
        "num_kv_heads": int(hf.num_key_value_heads),
        "head_dim": head_dim,
        "max_positions": max_positions(hf),
        "layers": _layers(hf, rope_of_type),
        "ropes": ropes,
        "norm_eps": float(hf.rms_norm_eps),
        "activation": _ACTIVATIONS[name],
        "attention_scale": head_dim**-0.5,
        "tied_head": bool(hf.tie_word_embeddings),
        "eos_token_ids": eos_ids(hf.eos_token_id),
    }
    fields.update(extras(hf))
    config = DecoderConfig(**fields)
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads")
    for field in (*sizes, "head_dim", "max_positions", "num_layers"):
        if getattr(config, field) < 1:
            raise EngineInputError(
                f"{field} of the configuration is {getattr(config, field)}; it must be at least 1"
            )
    if not config.norm_eps >= 0.0:
        raise EngineInputError(
            f"rms_norm_eps of the configuration is {config.norm_eps:g}; it cannot be negative"
        )
    if config.num_heads % config.num_kv_heads:
        raise EngineInputError(
            f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key/value"
            " heads evenly"
        )
    return config


def _layers(hf: PretrainedConfig, rope_of_type: dict[str, int]) -> tuple[LayerConfig, ...]:
    num_layers = int(hf.num_hidden_layers)
    window = getattr(hf, "sliding_window", None)
    types = getattr(hf, "layer_types", None)
    if types is None or hf.model_type in ("mistral", "phi3"):
        types = ["full_attention" if window is None else "sliding_attention"] * num_layers
    unknown = set(types) - {"full_attention", "sliding_attention"}
    if unknown:
        raise UnsupportedError(f"layer type {min(unknown)!r} of {hf.model_type} is not supported")
    if len(types) != num_layers:
        raise EngineInputError(f"layer_types names {len(types)} layers, the model has {num_layers}")
    rotated = getattr(hf, "no_rope_layers", None) or [1] * num_layers
    return tuple(
        LayerConfig(
            window=int(window) if kind == "sliding_attention" and window is not None else None,
            rope=rope_of_type.get(kind, 0) if rotated[index] else None,
        )
        for index, kind in enumerate(types)
    )


def _llama(hf: PretrainedConfig) -> dict[str, Any]:
    bias = bool(getattr(hf, "attention_bias", False))
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "mlp_bias": bool(getattr(hf, "mlp_bias", False)),
    }


def _mistral(hf: PretrainedConfig) -> dict[str, Any]:
    return {}


def _phi3(hf: PretrainedConfig) -> dict[str, Any]:
    return {"fused_projections": True}


def _qwen2(hf: PretrainedConfig) -> dict[str, Any]:
    return {"qkv_bias": True}


def _qwen3(hf: PretrainedConfig) -> dict[str, Any]:
    return {**_llama(hf), "qk_norm": True}


def _gemma(hf: PretrainedConfig) -> dict[str, Any]:
    if getattr(hf, "use_bidirectional_attention", None):
        raise UnsupportedError("bidirectional attention of a Gemma checkpoint is not supported")
    return {**_llama(hf), "norm_offset": True, "embedding_scale": float(hf.hidden_size) ** 0.5}


def _gemma2(hf: PretrainedConfig) -> dict[str, Any]:
    return {
        **_gemma(hf),
        "sandwich_norms": True,
        "attention_scale": float(hf.query_pre_attn_scalar) ** -0.5,
        "attention_softcap": hf.attn_logit_softcapping,
        "final_softcap": hf.final_logit_softcapping,
    }


def _gemma3(hf: PretrainedConfig) -> dict[str, Any]:
    if hf.attn_logit_softcapping is not None:
        # transformers reads this field and never applies it, so there is no reference to equal.
        raise UnsupportedError("attention soft cap in a Gemma 3 checkpoint is not supported")
    return {**_gemma2(hf), "qk_norm": True}


_FAMILIES: dict[str, Callable[[PretrainedConfig], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "smollm3": _llama,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
}
