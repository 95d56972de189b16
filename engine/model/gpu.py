"""All layers of a decoder through the GPU's kernels: ten launches a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.model.config import DecoderConfig
from draftsmith.engine.model.placement import check_rows
from draftsmith.engine.model.rope import RotaryTables
from draftsmith.engine.model.weights import DecoderWeights, LayerWeights, Projection
from draftsmith.engine.types import Hidden, RowBatch
from draftsmith.kernels.backend import form_for
from draftsmith.kernels.gate import gate
from draftsmith.kernels.linear import linear
from draftsmith.kernels.norm_rope_cache import HeadNorm, Rotation, norm_rope_cache
from draftsmith.kernels.ragged import RaggedRows, ragged_rows
from draftsmith.kernels.rms_norm import add_rms_norm, rms_norm
from draftsmith.kernels.tree_attention import ragged_attention


class GpuLayers:
    """The forward of ``Decoder`` for weights on CUDA or ROCm; in Triton's interpreter on the CPU,
    for tests. A row's numbers depend on that row alone.
    """

    def __init__(
        self, config: DecoderConfig, weights: DecoderWeights, rotary: RotaryTables
    ) -> None:
        self._config = config
        self._weights = weights
        self._rotary = rotary

    @property
    def is_available(self) -> bool:
        """Whether the kernels are to run now; they can be switched off for a block of code."""
        return form_for("tree_attention", self._weights.final_norm) == "triton"

    def forward(
        self,
        embedded: torch.Tensor,
        rows: RowBatch,
        cache: KVCache,
        layers: Sequence[int],
        capture: Sequence[int],
    ) -> Hidden:
        """As ``Decoder.forward``, from the embedding of its rows ``[B W, H]``."""
        check_rows(rows, cache)
        lengths = [cache.lengths[slot] for slot in rows.slots]
        shape = tuple(rows.token_ids.shape)
        bound = max(cache.capacity, max(lengths) + rows.offset + shape[1])
        positions = rows.positions.reshape(-1)
        rotations = [
            Rotation(cosine=cosine[:, 0], sine=sine[:, 0], positions=positions)
            for cosine, sine in self._rotary.tables(bound)
        ]
        ragged = ragged_rows(
            *(rows.slots, lengths, rows.widths),
            offset=rows.offset,
            visible=rows.visible,
            device=embedded.device,
        )
        hidden, fed = embedded, None
        captured: dict[int, torch.Tensor] = {}
        for index in layers:
            hidden, fed = self._layer(index, hidden, fed, ragged, cache, rotations)
            if index in capture:
                hidden, fed = hidden + fed, None
                captured[index] = hidden.view(*shape, -1)
        last = hidden if fed is None else hidden + fed
        return Hidden(last.view(*shape, -1), captured)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, self._weights.final_norm, self._config.norm_eps)

    def _layer(
        self,
        index: int,
        hidden: torch.Tensor,
        fed: torch.Tensor | None,
        ragged: RaggedRows,
        cache: KVCache,
        rotations: Sequence[Rotation],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``fed`` is what the layer before has yet to add to ``hidden`` ``[N, H]``; gives both
        anew.
        """
        weights, eps = self._weights.layers[index], self._config.norm_eps
        if fed is None:
            normed = rms_norm(hidden, weights.input_norm, eps)
        else:
            hidden, normed = add_rms_norm(fed, hidden, weights.input_norm, eps)
        mixed = self._attend(index, normed, ragged, cache, rotations)
        if weights.post_attention_norm is not None:
            mixed = rms_norm(mixed, weights.post_attention_norm, eps)
        hidden, normed = add_rms_norm(mixed, hidden, weights.mlp_norm, eps)
        fed = self._feed_forward(normed, weights)
        if weights.post_mlp_norm is not None:
            fed = rms_norm(fed, weights.post_mlp_norm, eps)
        return hidden, fed

    def _attend(
        self,
        index: int,
        normed: torch.Tensor,
        ragged: RaggedRows,
        cache: KVCache,
        rotations: Sequence[Rotation],
    ) -> torch.Tensor:
        config, weights = self._config, self._weights.layers[index]
        settings, norm = config.layers[index], weights.qk_norm
        q = norm_rope_cache(
            *(_project(normed, weights.qkv), cache.k[index], cache.v[index], ragged),
            norm=None if norm is None else HeadNorm(weight=norm, eps=config.norm_eps),
            rotation=None if settings.rope is None else rotations[settings.rope],
        )
        mixed = ragged_attention(
            *(q, cache.k[index], cache.v[index], ragged),
            scale=config.attention_scale,
            window=settings.window,
            softcap=config.attention_softcap,
        )
        return _project(mixed.view(normed.shape[0], -1), weights.output)

    def _feed_forward(self, normed: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
        inner = gate(_project(normed, weights.gate_up), self._config.activation)
        return _project(inner, weights.down)


def _project(x: torch.Tensor, projection: Projection) -> torch.Tensor:
    return linear(x, projection.weight, projection.bias)
