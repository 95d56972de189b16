"""One config-driven decoder for the Llama family and its relatives, over the engine's cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from draftsmith.engine.cache import CacheShape, KVCache
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.model.activation import GatedActivation
from draftsmith.engine.model.config import DecoderConfig
from draftsmith.engine.model.fused import FusedLayers
from draftsmith.engine.model.gpu import GpuLayers
from draftsmith.engine.model.heads import gather_head_rows, kernels_row_stable
from draftsmith.engine.model.model import ModelInfo
from draftsmith.engine.model.norm import RmsNorm
from draftsmith.engine.model.placement import RowPlacement, check_rows
from draftsmith.engine.model.rope import RotaryTables, rotate
from draftsmith.engine.model.weights import DecoderWeights, LayerWeights, num_bytes
from draftsmith.engine.types import HeadRows, Hidden, RowBatch
from draftsmith.kernels.draft_head import TopLogits, draft_head
from draftsmith.kernels.linear import linear
from draftsmith.kernels.panels import PackedWeight, Weight
from draftsmith.kernels.tree_attention import tree_attention


class Decoder:
    """Implements ``Model``. Activations are fp32 on the CPU and in the weights' dtype elsewhere;
    the cache is in the weights' dtype. On the CPU one kernel call runs all layers where it can, on
    CUDA and ROCm the Triton kernels run them; else they run operation by operation, each of which,
    besides the product and attention kernels, is elementwise or reduces over a row's last
    dimension. A row's numbers depend on that row alone in each of these ways.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        *,
        name: str = "",
        fingerprint: str = "",
    ) -> None:
        self.config = config
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._weights = weights
        self._activation_dtype = torch.float32 if self.device.type == "cpu" else self.dtype
        self._rotary = RotaryTables(config.ropes, self.device)
        self._layers = tuple(
            _Layer(config, index, layer) for index, layer in enumerate(weights.layers)
        )
        self._final_norm = RmsNorm(weights.final_norm, config.norm_eps)
        # transformers multiplies in the weights' dtype, which rounds the factor.
        scale = config.embedding_scale
        self._embedding_scale = (
            None if scale is None else torch.tensor(scale, dtype=self.dtype).item()
        )
        self._fused = (
            FusedLayers(config, weights, self._rotary, self._embedding_scale)
            if self.device.type == "cpu"
            else None
        )
        self._gpu = GpuLayers(config, weights, self._rotary)
        self._info = ModelInfo(
            name=name or config.family,
            family=config.family,
            vocab_size=config.vocab_size,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            max_positions=config.max_positions,
            eos_token_ids=config.eos_token_ids,
            dtype=str(self.dtype).removeprefix("torch."),
            weight_bytes=weights.num_bytes,
            head_bytes=num_bytes(weights.head),
            layers_bytes=weights.num_bytes - _table_bytes(weights),
            fingerprint=fingerprint,
            supports_layer_subsets=True,
            row_stable=kernels_row_stable(self.device),
        )

    @property
    def info(self) -> ModelInfo:
        return self._info

    def new_cache(self, *, num_slots: int, capacity: int) -> KVCache:
        config = self.config
        shape = CacheShape(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        return KVCache(
            shape, num_slots=num_slots, capacity=capacity, dtype=self.dtype, device=self.device
        )

    @torch.inference_mode()
    def forward(
        self,
        rows: RowBatch,
        cache: KVCache,
        *,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> Hidden:
        """See ``Model.forward``. Raises CapacityError when the rows do not fit, EngineInputError
        for layers out of range or order, and for a captured layer that is not run.
        """
        chosen = self._chosen(layers, capture)
        if self._fused is not None and self._fused.is_available:
            check_rows(rows, cache)
            return self._fused.forward(rows, cache, chosen, capture)
        if self._gpu.is_available:
            return self._gpu.forward(self._embed(rows), rows, cache, chosen, capture)
        placement = RowPlacement(rows, cache)
        num_slots, width = rows.token_ids.shape
        # Positions of padding rows may pass the capacity, never this bound.
        bound = max(cache.capacity, max(placement.lengths) + rows.offset + width)
        rotary = self._rotary.gather(rows.positions.reshape(-1), bound)
        attention = _Attention(rows, cache, placement.lengths)
        hidden = self._embed(rows)
        captured: dict[int, torch.Tensor] = {}
        for index in chosen:
            hidden = self._layers[index].forward(hidden, placement, rotary, attention)
            if index in capture:
                captured[index] = hidden.view(num_slots, width, -1)
        return Hidden(hidden.view(num_slots, width, -1), captured)

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        weight = self._weights.head if trimmed is None else trimmed.weight
        logits = linear(self._normed(hidden), weight, None).float()
        cap = self.config.final_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @torch.inference_mode()
    def top(
        self,
        hidden: torch.Tensor,
        count: int,
        trimmed: HeadRows | None = None,
        *,
        with_log_sum: bool = False,
    ) -> TopLogits:
        return draft_head(
            self._normed(hidden),
            self._weights.head if trimmed is None else trimmed.weight,
            count,
            softcap=self.config.final_softcap,
            with_log_sum=with_log_sum,
        )

    @torch.inference_mode()
    def trim_head(self, token_ids: Sequence[int]) -> HeadRows:
        return gather_head_rows(self._weights.head, None, token_ids)

    def _normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the head takes, by the norm that goes with the layers' kernels."""
        norm = self._gpu.final_norm if self._gpu.is_available else self._final_norm
        return norm(hidden)

    def _embed(self, rows: RowBatch) -> torch.Tensor:
        """``[B W, H]``."""
        hidden = _rows(self._weights.embedding, rows.token_ids.reshape(-1))
        hidden = hidden.to(self._activation_dtype)
        return hidden if self._embedding_scale is None else hidden * self._embedding_scale

    def _chosen(self, layers: Sequence[int] | None, capture: Sequence[int]) -> Sequence[int]:
        if layers is None and not capture:
            return range(self.config.num_layers)
        chosen = range(self.config.num_layers) if layers is None else layers
        last = -1
        for index in chosen:
            if not last < index < self.config.num_layers:
                raise EngineInputError(
                    f"layers {list(chosen)} must ascend within 0..{self.config.num_layers - 1}"
                )
            last = index
        missing = sorted(set(capture) - set(chosen))
        if missing:
            raise EngineInputError(f"layer {missing[0]} is to be captured but is not run")
        return chosen


class _Attention:
    """What the attention of every layer in one forward shares."""

    def __init__(self, rows: RowBatch, cache: KVCache, lengths: Sequence[int]) -> None:
        self.shape = tuple(rows.token_ids.shape)
        self.k, self.v = cache.k.unbind(0), cache.v.unbind(0)
        self.slots, self.lengths, self.widths = rows.slots, lengths, rows.widths
        self.offset, self.visible = rows.offset, rows.visible


class _Layer:
    """One decoder layer with its weights. Shapes: N = B * W rows, H hidden, D head dimension."""

    def __init__(self, config: DecoderConfig, index: int, weights: LayerWeights) -> None:
        self._index = index
        self._weights = weights
        self._window = config.layers[index].window
        self._rope = config.layers[index].rope
        self._heads = (config.num_heads, config.num_kv_heads)
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._head_dim = config.head_dim
        self._scale = config.attention_scale
        self._softcap = config.attention_softcap
        self._activation = GatedActivation(config.activation, weights.input_norm.device)
        eps = config.norm_eps
        self._input_norm = RmsNorm(weights.input_norm, eps)
        self._mlp_norm = RmsNorm(weights.mlp_norm, eps)
        self._qk_norm = _optional_norm(weights.qk_norm, eps)
        self._post_attention_norm = _optional_norm(weights.post_attention_norm, eps)
        self._post_mlp_norm = _optional_norm(weights.post_mlp_norm, eps)

    def forward(
        self,
        hidden: torch.Tensor,
        placement: RowPlacement,
        rotary: list[tuple[torch.Tensor, torch.Tensor]],
        attention: _Attention,
    ) -> torch.Tensor:
        """``hidden`` ``[N, H]`` -> ``[N, H]``."""
        mixed = self._attend(self._input_norm(hidden), placement, rotary, attention)
        if self._post_attention_norm is not None:
            mixed = self._post_attention_norm(mixed)
        hidden = mixed.add_(hidden)
        fed = self._feed_forward(self._mlp_norm(hidden))
        if self._post_mlp_norm is not None:
            fed = self._post_mlp_norm(fed)
        return fed.add_(hidden)

    def _attend(
        self,
        x: torch.Tensor,
        placement: RowPlacement,
        rotary: list[tuple[torch.Tensor, torch.Tensor]],
        attention: _Attention,
    ) -> torch.Tensor:
        weights = self._weights
        num_rows, num_heads = x.shape[0], self._heads[0]
        qkv = linear(x, weights.qkv.weight, weights.qkv.bias).view(num_rows, -1, self._head_dim)
        qk = qkv[:, : self._num_rotated]
        if self._qk_norm is not None:
            qk = self._qk_norm(qk)
        if self._rope is not None:
            qk = rotate(qk, *rotary[self._rope])
        placement.write(self._index, qk[:, num_heads:], qkv[:, self._num_rotated :])
        out = tree_attention(
            qk[:, :num_heads].view(*attention.shape, num_heads, self._head_dim),
            attention.k[self._index],
            attention.v[self._index],
            slots=attention.slots,
            lengths=attention.lengths,
            widths=attention.widths,
            offset=attention.offset,
            visible=attention.visible,
            scale=self._scale,
            window=self._window,
            softcap=self._softcap,
        )
        return linear(out.view(num_rows, -1), weights.output.weight, weights.output.bias)

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self._weights
        gate_up = linear(x, weights.gate_up.weight, weights.gate_up.bias)
        return linear(self._activation(gate_up), weights.down.weight, weights.down.bias)


def _table_bytes(weights: DecoderWeights) -> int:
    """Bytes of head and embedding; one tensor counts once."""
    apart = weights.head is not weights.embedding
    return num_bytes(weights.head) + (num_bytes(weights.embedding) if apart else 0)


def _rows(weight: Weight, index: torch.Tensor) -> torch.Tensor:
    """Rows ``index`` of a weight ``[N, H]``: ``[len(index), H]``."""
    if isinstance(weight, PackedWeight):
        return weight.rows(index)
    return functional.embedding(index, weight)


def _optional_norm(weight: torch.Tensor | None, eps: float) -> RmsNorm | None:
    return None if weight is None else RmsNorm(weight, eps)
