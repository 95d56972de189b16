"""All layers of a decoder in one kernel call, where that kernel can run."""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.engine.cache import KVCache
from draftsmith.engine.model.config import DecoderConfig
from draftsmith.engine.model.rope import RotaryTables
from draftsmith.engine.model.weights import DecoderWeights
from draftsmith.engine.types import Hidden, RowBatch
from draftsmith.kernels.decoder_layers import DecoderLayers, DecoderShape, LayerTensors


class FusedLayers:
    """The forward of ``Decoder`` through ``kernels.decoder_layers``, for weights on the CPU."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        rotary: RotaryTables,
        embedding_scale: float | None,
    ) -> None:
        self._rotary = rotary
        shape = DecoderShape(
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            gelu=config.activation == "gelu_pytorch_tanh",
            norm_eps=config.norm_eps,
            attention_scale=config.attention_scale,
            attention_softcap=config.attention_softcap,
            embedding_scale=embedding_scale,
        )
        layers = [
            LayerTensors(
                input_norm=layer.input_norm,
                qkv=layer.qkv.weight,
                qkv_bias=layer.qkv.bias,
                qk_norm=layer.qk_norm,
                output=layer.output.weight,
                output_bias=layer.output.bias,
                post_attention_norm=layer.post_attention_norm,
                mlp_norm=layer.mlp_norm,
                gate_up=layer.gate_up.weight,
                gate_up_bias=layer.gate_up.bias,
                down=layer.down.weight,
                down_bias=layer.down.bias,
                post_mlp_norm=layer.post_mlp_norm,
                window=settings.window,
                rope=settings.rope,
            )
            for layer, settings in zip(weights.layers, config.layers, strict=True)
        ]
        self._layers = DecoderLayers(shape, weights.embedding, layers)

    @property
    def is_available(self) -> bool:
        """Whether the kernel is to run now; it can be switched off for a block of code."""
        return self._layers.available()

    def forward(
        self, rows: RowBatch, cache: KVCache, layers: Sequence[int], capture: Sequence[int]
    ) -> Hidden:
        """As ``Decoder.forward``; the rows are known to fit."""
        lengths = [cache.lengths[slot] for slot in rows.slots]
        width = rows.token_ids.shape[1]
        bound = max(cache.capacity, max(lengths) + rows.offset + width)
        last, captured = self._layers.run(
            *(rows.token_ids, rows.positions, cache.k, cache.v),
            slots=rows.slots,
            lengths=lengths,
            widths=rows.widths,
            offset=rows.offset,
            visible=rows.visible,
            ropes=self._rotary.tables(bound),
            layers=layers,
            capture=capture,
        )
        return Hidden(last, captured)
