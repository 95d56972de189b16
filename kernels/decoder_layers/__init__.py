"""Embedding and decoder layers over a batch of rows in one call: the whole of a step but the head.

For each row: x = embedding[token] * embedding_scale; then, layer by layer,

    a = attention(rope(qk_norm(qkv(norm(x)))))   x = x + post_norm(output(a))
    f = act(gate(norm(x))) * up(norm(x))         x = x + post_norm(down(f))

with keys and values written into the cache on the way. Shapes: H hidden, I inner, Hq query heads,
Hkv key heads, D head dimension; weights and cache share one type (fp32, bf16, fp16; weights in any
form that ``kernels.linear`` takes), everything else is fp32. Rows, visibility and logical order of
keys are those of ``kernels.tree_attention``.

Bytes: every weight once (sum over layers of H * ((Hq + 2 Hkv) D + Hq D + 3 I) * element size), the
visible rows of the cache, activations of a few rows. Floor: those bytes over the memory's
bandwidth, or 2 * rows * weights operations over the processor's peak, whichever is larger.

Why one call: between its products a layer of a small batch has microseconds of work, in ten
separate operations that cost more to start than to do. ``cpu.cpp`` keeps the threads together over
all layers. There is no reference of its own: ``engine/model/decoder.py`` runs the same steps one by
one where this cannot run, and the tests hold the two together (1e-5 of the values' scale: sums of
norms and exponentials differ in their last bits). Row-stable, as its parts are.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftsmith.kernels.backend import library
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear import MatrixStruct, matrix_struct
from draftsmith.kernels.panels import PackedWeight, Weight

_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_pointer, _int64, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """``gelu``: tanh-approximated, instead of silu. ``attention_softcap`` None is none."""

    hidden: int
    inner: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    gelu: bool
    norm_eps: float
    attention_scale: float
    attention_softcap: float | None
    embedding_scale: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One layer. Weights dense or packed, of one type, biases and norms fp32; None where there is
    none. ``window`` counts positions, a row's own included; ``rope`` indexes the tables given to
    ``run``.
    """

    input_norm: torch.Tensor  # [H]
    qkv: Weight  # [(Hq + 2 Hkv) D, H]
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None  # [Hq + Hkv, D]
    output: Weight  # [H, Hq D]
    output_bias: torch.Tensor | None
    post_attention_norm: torch.Tensor | None  # [H]
    mlp_norm: torch.Tensor  # [H]
    gate_up: Weight  # [2 I, H], gate first
    gate_up_bias: torch.Tensor | None
    down: Weight  # [H, I]
    down_bias: torch.Tensor | None
    post_mlp_norm: torch.Tensor | None  # [H]
    window: int | None
    rope: int | None


_SETTINGS = ("window", "rope")  # the fields of LayerTensors that are no tensors
_WEIGHTS = ("qkv", "output", "gate_up", "down")
_TENSORS = tuple(name for name in LayerTensors.__dataclass_fields__ if name not in _SETTINGS)


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, MatrixStruct if name in _WEIGHTS else _pointer) for name in _TENSORS),
        *((name, _int64) for name in _SETTINGS),
    )


class _Rope(ctypes.Structure):
    _fields_ = (("cos", _pointer), ("sin", _pointer), ("dim", _int64))


class _Model(ctypes.Structure):
    _fields_ = (
        *(("layers", _pointer), ("embedding", MatrixStruct)),
        *((name, _int64) for name in ("hidden", "inner", "heads", "kv_heads", "dim", "gelu")),
        *((name, _float) for name in ("eps", "scale", "softcap", "embedding_scale")),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("tokens", "positions", "slots", "lengths", "widths")),
        *((name, _pointer) for name in ("visible", "chosen", "captures", "k", "v", "ropes")),
        ("hidden", _pointer),
        *((name, _int64) for name in ("num_slots", "width", "offset", "num_chosen")),
        *((name, _int64) for name in ("layer_stride", "slot_stride", "head_stride", "threads")),
    )


class DecoderLayers:
    """The layers of one model on the CPU; keeps the tensors it is given alive."""

    def __init__(
        self,
        shape: DecoderShape,
        embedding: Weight,  # [V, H]
        layers: Sequence[LayerTensors],
    ) -> None:
        """Raises ``KernelInputError`` for a tensor of another shape, type or layout."""
        if embedding.dtype not in _DTYPE_CODES or embedding.device.type != "cpu":
            raise KernelInputError(
                f"weights are {embedding.dtype} on {embedding.device};"
                " fp32, bf16 or fp16 on the CPU are needed"
            )
        _check("embedding", embedding, (embedding.shape[0], shape.hidden), embedding.dtype)
        for index, layer in enumerate(layers):
            _check_layer(index, layer, shape, embedding.dtype)
        self._shape = shape
        self._embedding = embedding
        self._layers = tuple(layers)
        self._code = _DTYPE_CODES[embedding.dtype]
        self._table = (_Layer * len(layers))(*(_Layer(*_layer_row(layer)) for layer in layers))
        self._model = _Model(
            ctypes.addressof(self._table),
            matrix_struct(embedding),
            *(shape.hidden, shape.inner, shape.num_heads, shape.num_kv_heads, shape.head_dim),
            *(int(shape.gelu), shape.norm_eps, shape.attention_scale),
            shape.attention_softcap or 0.0,
            1.0 if shape.embedding_scale is None else shape.embedding_scale,
        )

    @staticmethod
    def available() -> bool:
        """Whether the C++ form is to run now."""
        return library() is not None

    def run(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        slots: Sequence[int],
        lengths: Sequence[int],
        widths: Sequence[int],
        offset: int,
        visible: torch.Tensor | None,
        ropes: Sequence[tuple[torch.Tensor, torch.Tensor]],
        layers: Sequence[int],
        capture: Sequence[int] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """``token_ids`` and ``positions`` int64 ``[B, W]``; caches ``[L, S, Hkv, C, D]``; ``ropes``
        cosines and sines fp32 ``[positions, ..., dim]``, the first half of the sines negated.
        Returns the residual stream ``[B, W, H]`` behind the last of ``layers`` (ascending), and
        behind those of ``capture``; padding rows are zeros. The caller has checked that rows fit
        the cache and ids the tables (``engine/model/placement.check_rows``). KernelInputError
        where shapes do not fit each other, KernelEnvironmentError without the C++ kernels.
        """
        native = library()
        if native is None:
            raise KernelInputError("the C++ kernels do not run now; ask available() first")
        num_slots, width = token_ids.shape
        self._check_call(token_ids, positions, k_cache, v_cache, visible, offset)
        padded = any(real < width for real in widths)
        make = torch.zeros if padded else torch.empty
        hidden = make(num_slots, width, self._shape.hidden, dtype=torch.float32)
        captured = {layer: torch.empty_like(hidden) for layer in capture}
        if padded:
            for tensor in captured.values():
                tensor.zero_()
        tokens, places = token_ids.contiguous(), positions.contiguous()
        mask = None if visible is None else visible.contiguous()
        integers = _int64 * num_slots
        call_slots, call_lengths, call_widths = (
            integers(*slots),
            integers(*lengths),
            integers(*widths),
        )
        chosen = (_int64 * len(layers))(*layers)
        outs = (_pointer * len(layers))(
            *(captured[layer].data_ptr() if layer in captured else None for layer in layers)
        )
        tables = (_Rope * max(1, len(ropes)))(
            *(_Rope(cos.data_ptr(), sin.data_ptr(), cos.shape[-1]) for cos, sin in ropes)
        )
        call = _Call(
            *(tokens.data_ptr(), places.data_ptr()),
            *(ctypes.addressof(item) for item in (call_slots, call_lengths, call_widths)),
            *(None if mask is None else mask.data_ptr(), ctypes.addressof(chosen)),
            *(ctypes.addressof(outs), k_cache.data_ptr(), v_cache.data_ptr()),
            *(ctypes.addressof(tables), hidden.data_ptr(), num_slots, width, offset, len(layers)),
            *(*k_cache.stride()[:3], torch.get_num_threads()),
        )
        native.draftsmith_decoder_layers(
            ctypes.addressof(self._model), ctypes.addressof(call), self._code
        )
        return hidden, captured

    def _check_call(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        visible: torch.Tensor | None,
        offset: int,
    ) -> None:
        num_slots, width = token_ids.shape
        integers = token_ids.dtype == positions.dtype == torch.int64
        if positions.shape != token_ids.shape or not integers:
            raise KernelInputError(
                f"token_ids are {token_ids.dtype} {tuple(token_ids.shape)}, positions"
                f" {positions.dtype} {tuple(positions.shape)}; both must be int64 [B, W]"
            )
        low, high = (int(end) for end in torch.aminmax(token_ids))
        if low < 0 or high >= self._embedding.shape[0]:
            raise KernelInputError(
                f"token id {low if low < 0 else high} is outside the vocabulary of"
                f" {self._embedding.shape[0]}"
            )
        head_dim = self._shape.head_dim
        wanted = (len(self._layers), self._shape.num_kv_heads, head_dim)
        if (k_cache.shape, k_cache.stride()) != (v_cache.shape, v_cache.stride()):
            raise KernelInputError(
                f"k_cache has shape {tuple(k_cache.shape)} and strides {k_cache.stride()}, v_cache"
                f" {tuple(v_cache.shape)} and {v_cache.stride()}; they must be alike"
            )
        for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
            found = (cache.shape[0], cache.shape[2], cache.shape[4])
            if found != wanted or cache.stride()[3:] != (head_dim, 1):
                raise KernelInputError(
                    f"{name} has shape {tuple(cache.shape)} and strides {cache.stride()};"
                    f" {wanted[0]} layers, {wanted[1]} heads and dense rows of {head_dim} are"
                    " needed"
                )
            if cache.dtype != self._embedding.dtype:
                raise KernelInputError(f"{name} is {cache.dtype}, weights {self._embedding.dtype}")
        mask = (num_slots, width, offset + width)
        if visible is not None and (visible.dtype != torch.bool or tuple(visible.shape) != mask):
            raise KernelInputError(
                f"visible is {visible.dtype} {tuple(visible.shape)}; torch.bool {mask} is needed"
            )


def _layer_row(layer: LayerTensors) -> tuple[int | MatrixStruct | None, ...]:
    values = ((name, getattr(layer, name)) for name in _TENSORS)
    fields = (
        matrix_struct(value) if name in _WEIGHTS else None if value is None else value.data_ptr()
        for name, value in values
    )
    return (*fields, layer.window or 0, -1 if layer.rope is None else layer.rope)


def _check_layer(index: int, layer: LayerTensors, shape: DecoderShape, dtype: torch.dtype) -> None:
    heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    hidden, inner, qkv = shape.hidden, shape.inner, (heads + 2 * kv_heads) * dim
    fp32 = torch.float32
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "input_norm": ((hidden,), fp32),
        "qkv": ((qkv, hidden), dtype),
        "qkv_bias": ((qkv,), fp32),
        "qk_norm": ((heads + kv_heads, dim), fp32),
        "output": ((hidden, heads * dim), dtype),
        "output_bias": ((hidden,), fp32),
        "post_attention_norm": ((hidden,), fp32),
        "mlp_norm": ((hidden,), fp32),
        "gate_up": ((2 * inner, hidden), dtype),
        "gate_up_bias": ((2 * inner,), fp32),
        "down": ((hidden, inner), dtype),
        "down_bias": ((hidden,), fp32),
        "post_mlp_norm": ((hidden,), fp32),
    }
    for name, (size, kind) in wanted.items():
        tensor = getattr(layer, name)
        if tensor is not None:
            _check(f"{name} of layer {index}", tensor, size, kind)


def _check(name: str, tensor: Weight, size: tuple[int, ...], dtype: torch.dtype) -> None:
    if isinstance(tensor, PackedWeight):
        if tensor.shape != size or tensor.dtype != dtype:
            raise KernelInputError(
                f"{name} is packed {tensor.dtype} {tensor.shape}; {dtype} {size} is needed"
            )
        return
    if tuple(tensor.shape) != size or tensor.dtype != dtype or not tensor.is_contiguous():
        raise KernelInputError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()};"
            f" dense {dtype} {size} is needed"
        )


__all__ = ["DecoderLayers", "DecoderShape", "LayerTensors"]
