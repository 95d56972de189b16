"""Bytes and launches of one step on a GPU: the sum of what its kernels' formulas say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftsmith.engine.model.config import DecoderConfig
from draftsmith.engine.model.weights import DecoderWeights, LayerWeights, Projection
from draftsmith.kernels import gate, linear, norm_rope_cache, rms_norm, tree_attention
from draftsmith.kernels.configurations import DEFAULT
from draftsmith.kernels.cost import Cost
from draftsmith.kernels.panels import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """``counts[b][i]`` draft rows are seen by row i of sequence b; None: chains. ``head_rows`` of
    all rows go through the head.
    """

    lengths: Sequence[int]
    widths: Sequence[int]
    max_width: int
    head_rows: int
    offset: int = 0
    counts: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What a step of one decoder costs. Left out: reading the embedding's rows, and the additions
    that torch makes.
    """

    config: DecoderConfig
    weights: DecoderWeights
    activation_size: int  # bytes a number of the activations
    architecture: str = DEFAULT

    def of(self, rows: StepRows) -> Cost:
        total = self._norm(rows.head_rows) + self._product(self.weights.head, None, rows.head_rows)
        for index in range(self.config.num_layers):
            total += self._layer(index, rows)
        return total

    def _layer(self, index: int, rows: StepRows) -> Cost:
        weights, num_rows = self.weights.layers[index], len(rows.lengths) * rows.max_width
        total = self._norm(num_rows, adds=index > 0) + self._norm(num_rows, adds=True)
        for norm in (weights.post_attention_norm, weights.post_mlp_norm):
            if norm is not None:
                total += self._norm(num_rows)
        for projection in _projections(weights):
            total += self._product(projection.weight, projection.bias, num_rows)
        total += gate.cost(
            num_rows=num_rows,
            size=self.config.intermediate_size,
            element_size=self.activation_size,
        )
        return total + self._cache_write(index, rows) + self._attention(index, rows)

    def _norm(self, num_rows: int, adds: bool = False) -> Cost:
        return rms_norm.cost(
            num_rows=num_rows,
            size=self.config.hidden_size,
            element_size=self.activation_size,
            adds=adds,
        )

    def _product(self, weight: Weight, bias: torch.Tensor | None, num_rows: int) -> Cost:
        return linear.cost(
            num_rows=num_rows,
            num_outputs=weight.shape[0],
            depth=weight.shape[1],
            x_size=self.activation_size,
            weight_size=weight.dtype.itemsize,
            bias_size=0 if bias is None else bias.element_size(),
            architecture=self.architecture,
        )

    def _cache_write(self, index: int, rows: StepRows) -> Cost:
        config = self.config
        rope = config.layers[index].rope
        return norm_rope_cache.cost(
            widths=rows.widths,
            max_width=rows.max_width,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rotary_dim=0 if rope is None else 2 * len(config.ropes[rope].inv_freq),
            element_size=self.activation_size,
            cache_size=self.weights.embedding.dtype.itemsize,
            normed=self.weights.layers[index].qk_norm is not None,
        )

    def _attention(self, index: int, rows: StepRows) -> Cost:
        config = self.config
        shape = tree_attention.AttentionShape(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            q_size=self.activation_size,
            cache_size=self.weights.embedding.dtype.itemsize,
            window=config.layers[index].window,
        )
        return tree_attention.cost(
            shape,
            lengths=rows.lengths,
            widths=rows.widths,
            max_width=rows.max_width,
            offset=rows.offset,
            counts=rows.counts,
            architecture=self.architecture,
        )


def _projections(weights: LayerWeights) -> tuple[Projection, ...]:
    return weights.qkv, weights.output, weights.gate_up, weights.down
