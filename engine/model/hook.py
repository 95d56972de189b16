"""An attention function for transformers' models that works over the engine's cache.

transformers calls ``_dispatch`` in every attention layer of a model loaded with the implementation
``draftsmith``; what it does there is decided by the listener of the forward that is under way. A
mask function is left unregistered on purpose: transformers then builds no mask and hands on None.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from transformers import AttentionInterface

from draftsmith.engine.cache import KVCache
from draftsmith.engine.errors import UnsupportedError
from draftsmith.engine.model.placement import RowPlacement
from draftsmith.engine.types import RowBatch
from draftsmith.kernels.tree_attention import tree_attention

IMPLEMENTATION = "draftsmith"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One layer's call: ``q`` ``[B, Hq, W, D]``, ``k`` and ``v`` ``[B, Hkv, W, D]``."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    window: int | None
    softcap: float | None


class Listener(Protocol):
    def attend(self, call: AttentionCall) -> torch.Tensor:
        """``[B, W, Hq, D]`` in the query's dtype."""
        ...


_listener: ContextVar[Listener | None] = ContextVar("draftsmith_attention_listener", default=None)


def register() -> None:
    """Make ``attn_implementation="draftsmith"`` known to transformers. Repeating it is harmless."""
    AttentionInterface.register(IMPLEMENTATION, _dispatch)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Route the attention layers of a forward inside the block to ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class CacheAttention:
    """Listener of a real forward: writes the new rows into the cache and attends over it."""

    def __init__(self, rows: RowBatch, cache: KVCache) -> None:
        self._rows = rows
        self._cache = cache
        self._placement = RowPlacement(rows, cache)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        k, v = call.k.transpose(1, 2).flatten(0, 1), call.v.transpose(1, 2).flatten(0, 1)
        self._placement.write(call.layer, k, v)
        q = call.q.transpose(1, 2)
        out = tree_attention(
            q.float() if q.device.type == "cpu" else q,
            self._cache.k[call.layer],
            self._cache.v[call.layer],
            slots=self._rows.slots,
            lengths=self._placement.lengths,
            widths=self._rows.widths,
            offset=self._rows.offset,
            visible=self._rows.visible,
            scale=call.scale,
            window=call.window,
            softcap=call.softcap,
        )
        return out.to(q.dtype)


class ShapeProbe:
    """Listener that only notes what each layer brings; the model's output means nothing."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int]] = {}  # layer -> (kv heads, head dimension)
        self.windows: dict[int, int | None] = {}

    def attend(self, call: AttentionCall) -> torch.Tensor:
        if call.v.shape[-1] != call.k.shape[-1]:
            raise UnsupportedError(
                f"keys of {call.k.shape[-1]} and values of {call.v.shape[-1]} dimensions"
                " (latent attention) do not fit draftsmith's cache"
            )
        self.shapes[call.layer] = (call.k.shape[1], call.k.shape[3])
        self.windows[call.layer] = call.window
        return torch.zeros_like(call.q.transpose(1, 2))


def _dispatch(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    listener = _listener.get()
    if listener is None:
        raise UnsupportedError(
            "a model loaded with draftsmith's attention runs only inside draftsmith's forward"
        )
    extra = [
        name for name in ("s_aux", "position_bias", "head_mask") if kwargs.get(name) is not None
    ]
    if extra or attention_mask is not None:
        what = extra[0] if extra else "a mask of its own"
        raise UnsupportedError(f"attention with {what} is not supported")
    scale = kwargs.get("scaling")
    out = listener.attend(
        AttentionCall(
            layer=int(cast(int, module.layer_idx)),
            q=query,
            k=key,
            v=value,
            scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
            window=kwargs.get("sliding_window"),
            softcap=kwargs.get("softcap"),
        )
    )
    return out, None
