"""What a transformers model brings to the attention hook, found by running one token through it."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from draftsmith.engine.cache import CacheShape
from draftsmith.engine.errors import UnsupportedError
from draftsmith.engine.model.hook import ShapeProbe, listening


def probe_decoder(base: PreTrainedModel, family: str) -> tuple[CacheShape, type[ModelOutput]]:
    """One token through the model: which layers call the hook with which shapes, and the type of
    the base model's output.
    """
    config = base.config
    _refuse_rotary(config, family)
    probe = ShapeProbe()
    with torch.inference_mode(), listening(probe):
        token = torch.zeros(1, 1, dtype=torch.int64, device=base.device)
        output = base(input_ids=token, use_cache=False)
    num_layers = int(config.num_hidden_layers)
    if sorted(probe.shapes) != list(range(num_layers)):
        raise UnsupportedError(
            f"{num_layers - len(probe.shapes)} of {num_layers} layers of model type {family} do not"
            " call transformers' attention hook (recurrent state or attention of their own)"
        )
    if len(set(probe.shapes.values())) != 1:
        raise UnsupportedError(
            f"layers of model type {family} have keys of unequal shapes; the cache holds one shape"
        )
    _refuse_windows(config, family, probe)
    num_kv_heads, head_dim = probe.shapes[0]
    shape = CacheShape(num_layers=num_layers, num_kv_heads=num_kv_heads, head_dim=head_dim)
    return shape, type(output)


def _refuse_rotary(config: PretrainedConfig, family: str) -> None:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    for entry in [parameters, *nested]:
        kind = entry.get("rope_type")
        if kind in ("dynamic", "longrope"):
            raise UnsupportedError(
                f"rotary scaling {kind!r} of {family} depends on the longest row of a batch,"
                " so rows"
                " would not be independent"
            )


def _refuse_windows(config: PretrainedConfig, family: str, probe: ShapeProbe) -> None:
    """A window that the config asks for must reach the hook, else long prompts would differ."""
    types = getattr(config, "layer_types", None) or ()
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedError(f"layer type {unknown[0]!r} of model type {family} is not supported")
    for layer, kind in enumerate(types):
        if kind == "sliding_attention" and probe.windows[layer] is None:
            raise UnsupportedError(f"the sliding window of model type {family} misses the hook")
    window = getattr(config, "sliding_window", None)
    used = window is not None and getattr(config, "use_sliding_window", True)
    if used and not types and not any(probe.windows.values()):
        raise UnsupportedError(f"the sliding window of model type {family} misses the hook")
