"""Tensors of one decoder in the layout its forward wants: fused projections, fp32 norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.model.config import DecoderConfig
from draftsmith.engine.model.packing import Packer, as_they_are
from draftsmith.kernels.panels import PackedWeight, Weight

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"

TensorSource = Callable[[str], torch.Tensor]  # raises KeyError for a name that it lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    weight: Weight  # [out, in]
    bias: torch.Tensor | None = None  # [out] fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """Norm weights are fp32 ``[H]`` (``[D]`` for q and k), the offset of Gemma already added."""

    input_norm: torch.Tensor
    qkv: Projection  # [(Hq + 2 * Hkv) * D, H]
    output: Projection  # [H, Hq * D]
    mlp_norm: torch.Tensor
    gate_up: Projection  # [2 * I, H]
    down: Projection  # [H, I]
    qk_norm: torch.Tensor | None = None  # [Hq + Hkv, D]: q's weight for each q head, then k's
    post_attention_norm: torch.Tensor | None = None
    post_mlp_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    embedding: Weight  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor  # [H] fp32
    head: Weight  # [V, H]; the embedding itself when tied

    @property
    def num_bytes(self) -> int:
        """Bytes held; a tied head counts once."""
        tensors: list[Weight | None] = [self.embedding, self.final_norm]
        if self.head is not self.embedding:
            tensors.append(self.head)
        for layer in self.layers:
            tensors += [layer.input_norm, layer.mlp_norm, layer.qk_norm]
            tensors += [layer.post_attention_norm, layer.post_mlp_norm]
            for projection in (layer.qkv, layer.output, layer.gate_up, layer.down):
                tensors += [projection.weight, projection.bias]
        return sum(num_bytes(tensor) for tensor in tensors if tensor is not None)


def num_bytes(tensor: Weight) -> int:
    """Bytes that a weight takes in memory."""
    if isinstance(tensor, PackedWeight):
        return tensor.num_bytes
    return tensor.numel() * tensor.element_size()


def assemble(
    config: DecoderConfig,
    source: TensorSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    pack: Packer = as_they_are,
) -> DecoderWeights:
    """Read every tensor of ``config`` from ``source`` once, converting to ``dtype`` on ``device``;
    ``pack`` then gives each matrix its form in memory.

    Projections that the forward fuses are copied part by part into their final tensor. So the peak
    is the weights plus one part or, where ``pack`` makes another form of it, one matrix (of an
    untied model embedding and head). Raises EngineInputError for a missing tensor, a wrong shape,
    or an untied checkpoint without ``lm_head`` (cases.md B46).
    """
    return _Assembler(config, source, dtype, device, pack).decoder()


class _Assembler:
    def __init__(
        self,
        config: DecoderConfig,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device,
        pack: Packer,
    ) -> None:
        self.config = config
        self.source = source
        self.dtype = dtype
        self.device = device
        self.pack = pack

    def decoder(self) -> DecoderWeights:
        config = self.config
        embedding, head = self._tables()
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layer(index) for index in range(config.num_layers)),
            final_norm=self._norm("model.norm.weight", config.hidden_size),
            head=head,
        )

    def _tables(self) -> tuple[Weight, Weight]:
        """Embedding and head in the form of ``pack``; the dense ones end here."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        embedding, head = self._tied(shape) if self.config.tied_head else self._untied(shape)
        packed = self.pack(head)
        return packed if head is embedding else self.pack(embedding), packed

    def _tied(self, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """One tensor for both, whichever name it is stored under. A checkpoint that holds two
        different ones contradicts its tie: both are kept, as transformers does.
        """
        embedding, head = self._optional(_EMBEDDING, shape), self._optional(_HEAD, shape)
        if embedding is None or head is None:
            shared = head if embedding is None else embedding
            if shared is None:
                raise EngineInputError(f"the checkpoint has neither {_EMBEDDING} nor {_HEAD}")
            return shared, shared
        return embedding, embedding if torch.equal(embedding, head) else head

    def _untied(self, shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        head = self._optional(_HEAD, shape)
        if head is None:
            raise EngineInputError(
                f"the checkpoint has no {_HEAD} and its config says tie_word_embeddings=false;"
                " a head cannot be invented: save the model with its head, or set"
                " tie_word_embeddings=true if the head is the embedding"
            )
        return self._copied(self._read(_EMBEDDING, shape)), head

    def _layer(self, index: int) -> LayerWeights:
        config = self.config
        prefix = f"model.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        sandwich = config.sandwich_norms
        if config.fused_projections:
            qkv_parts = [(attention + "qkv_proj", q_rows + 2 * kv_rows)]
            gate_up_parts = [(mlp + "gate_up_proj", 2 * inner)]
        else:
            qkv_parts = [
                (attention + "q_proj", q_rows),
                (attention + "k_proj", kv_rows),
                (attention + "v_proj", kv_rows),
            ]
            gate_up_parts = [(mlp + "gate_proj", inner), (mlp + "up_proj", inner)]
        after_attention = prefix + "post_attention_layernorm.weight"
        before_mlp = prefix + "pre_feedforward_layernorm.weight" if sandwich else after_attention
        return LayerWeights(
            input_norm=self._norm(prefix + "input_layernorm.weight", hidden),
            qkv=self._projection(qkv_parts, hidden, config.qkv_bias),
            output=self._projection([(attention + "o_proj", hidden)], q_rows, config.output_bias),
            mlp_norm=self._norm(before_mlp, hidden),
            gate_up=self._projection(gate_up_parts, hidden, config.mlp_bias),
            down=self._projection([(mlp + "down_proj", hidden)], inner, config.mlp_bias),
            qk_norm=self._qk_norm(attention) if config.qk_norm else None,
            post_attention_norm=self._norm(after_attention, hidden) if sandwich else None,
            post_mlp_norm=(
                self._norm(prefix + "post_feedforward_layernorm.weight", hidden)
                if sandwich
                else None
            ),
        )

    def _projection(self, parts: Sequence[tuple[str, int]], width: int, bias: bool) -> Projection:
        total = sum(rows for _, rows in parts)
        weight = torch.empty((total, width), dtype=self.dtype, device=self.device)
        biases = torch.empty(total, dtype=torch.float32, device=self.device) if bias else None
        start = 0
        for name, rows in parts:
            weight[start : start + rows] = self._read(name + ".weight", (rows, width))
            if biases is not None:
                biases[start : start + rows] = self._read(name + ".bias", (rows,))
            start += rows
        return Projection(weight=self.pack(weight), bias=biases)

    def _qk_norm(self, attention: str) -> torch.Tensor:
        config = self.config
        q = self._norm(attention + "q_norm.weight", config.head_dim)
        k = self._norm(attention + "k_norm.weight", config.head_dim)
        return torch.cat((q.expand(config.num_heads, -1), k.expand(config.num_kv_heads, -1)))

    def _norm(self, name: str, width: int) -> torch.Tensor:
        weight = self._read(name, (width,)).to(device=self.device, dtype=torch.float32, copy=True)
        return weight + 1.0 if self.config.norm_offset else weight

    def _optional(self, name: str, shape: tuple[int, int]) -> torch.Tensor | None:
        try:
            tensor = self.source(name)
        except KeyError:
            return None
        return self._copied(self._checked(name, tensor, shape))

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of its own memory: the source may be a view into a mapped file."""
        return tensor.to(device=self.device, dtype=self.dtype, copy=True).contiguous()

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        try:
            tensor = self.source(name)
        except KeyError:
            raise EngineInputError(
                f"the checkpoint lacks tensor {name}, which a {self.config.family} of"
                f" {self.config.num_layers} layers needs; the file is incomplete or its config is"
                " another model's"
            ) from None
        return self._checked(name, tensor, shape)

    @staticmethod
    def _checked(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        if tuple(tensor.shape) != shape:
            raise EngineInputError(
                f"tensor {name} has shape {list(tensor.shape)}, the config asks for {list(shape)};"
                " config.json and weights do not belong together"
            )
        if not torch.isfinite(tensor.sum(dtype=torch.float32)):
            raise EngineInputError(
                f"tensor {name} holds NaN or infinite numbers; the checkpoint is damaged"
            )
        return tensor
