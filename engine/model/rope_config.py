"""Rotary embeddings of a checkpoint, read from its transformers configuration."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftsmith.engine.errors import EngineInputError, UnsupportedError

_POSITIVE = ("rope_theta", "factor", "partial_rotary_factor", "original_max_position_embeddings")
_SCALED_KINDS = ("linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """One rotary embedding: ``inv_freq`` has half the rotated dimensions, in radians a position.
    ``scaling`` multiplies both cosine and sine (yarn).
    """

    inv_freq: tuple[float, ...]
    scaling: float = 1.0

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)


def read_ropes(
    hf: PretrainedConfig, head_dim: int
) -> tuple[tuple[RopeConfig, ...], dict[str, int]]:
    """The rotary embeddings and, where they differ by layer type, which type uses which. Raises
    UnsupportedError for a scaling of another kind, EngineInputError for numbers that give none.
    """
    parameters = hf.rope_parameters
    nested = [key for key in ("full_attention", "sliding_attention") if key in parameters]
    if not nested:
        return (_rope(hf, parameters, head_dim, None),), {}
    used = [kind for kind in nested if kind in hf.layer_types]
    ropes = tuple(_rope(hf, parameters[kind], head_dim, kind) for kind in used)
    return ropes, {kind: index for index, kind in enumerate(used)}


def _rope(
    hf: PretrainedConfig, parameters: dict[str, Any], head_dim: int, layer_type: str | None
) -> RopeConfig:
    kind = parameters.get("rope_type", "default")
    _check_numbers(parameters)
    if kind == "default":
        # Among these families only phi3's default rotation reads the partial factor.
        factor = parameters.get("partial_rotary_factor", 1.0) if hf.model_type == "phi3" else 1.0
        dim = int(head_dim * factor)
        exponents = torch.arange(0, dim, 2, dtype=torch.float) / dim
        return RopeConfig(
            inv_freq=tuple((1.0 / float(parameters["rope_theta"]) ** exponents).tolist())
        )
    if kind not in _SCALED_KINDS:
        raise UnsupportedError(
            f"rotary scaling {kind!r} of {hf.model_type} is not supported; known: default, "
            + ", ".join(_SCALED_KINDS)
        )
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[kind](hf, torch.device("cpu"), layer_type=layer_type)
    if not 0 < 2 * len(inv_freq) <= head_dim:
        raise EngineInputError(f"rotary dimension {2 * len(inv_freq)} exceeds head_dim {head_dim}")
    if not bool(inv_freq.isfinite().all()) or not math.isfinite(scaling):
        raise EngineInputError(
            f"rotary scaling {kind!r} of the configuration gives numbers that are not finite; mend"
            " config.json or download it again"
        )
    return RopeConfig(inv_freq=tuple(inv_freq.tolist()), scaling=float(scaling))


def _check_numbers(parameters: dict[str, Any]) -> None:
    """EngineInputError for a base or a factor that is not a finite number above 0."""
    for name in _POSITIVE:
        value = parameters.get(name)
        if value is None and name != "rope_theta":
            continue  # transformers has a rule for its absence
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not number or not 0 < value <= sys.float_info.max:
            raise EngineInputError(
                f"{name} of the rotary embedding is {value!r}; it must be a finite number above 0:"
                " mend config.json or download it again"
            )
