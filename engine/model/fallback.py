"""Any other decoder-only transformers model, driven through the engine's protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from draftsmith.engine.cache import KVCache
from draftsmith.engine.errors import EngineInputError, UnsupportedError, reason_of
from draftsmith.engine.model.config import max_positions
from draftsmith.engine.model.gguf_file import quiet_transformers
from draftsmith.engine.model.heads import gather_head_rows, top_of
from draftsmith.engine.model.hook import (
    IMPLEMENTATION,
    CacheAttention,
    listening,
    register,
)
from draftsmith.engine.model.model import ModelInfo
from draftsmith.engine.model.probing import probe_decoder
from draftsmith.engine.types import HeadRows, Hidden, RowBatch
from draftsmith.kernels.draft_head import TopLogits

_PROBE_LENGTH = 12


class FallbackModel:
    """Implements ``Model`` over a transformers module loaded with ``hook.IMPLEMENTATION``.

    ``Hidden.last`` is the base model's output, final norm included; ``head`` applies whatever the
    model's own class does to it (scales, soft caps). Construction runs the model on a short probe,
    and refuses by name what the hook cannot carry: layers that do not call it, layers of unequal
    shapes, or numbers that differ from the model's own attention.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        *,
        name: str = "",
        fingerprint: str = "",
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self._module = module.eval()
        self._base = module.get_decoder()
        self._family = str(module.config.model_type)
        if self._base is module:
            raise UnsupportedError(
                f"model type {self._family} keeps no decoder apart from its head"
            )
        self._shape, self._output_type = probe_decoder(self._base, self._family)
        self.device, self.dtype = module.device, module.dtype
        self._max_positions = max_positions(module.config)
        weight_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
        head = module.get_output_embeddings().weight
        head_bytes = head.numel() * head.element_size()
        self._info = ModelInfo(
            name=name or self._family,
            family=self._family,
            vocab_size=int(module.config.vocab_size),
            num_layers=self._shape.num_layers,
            hidden_size=int(module.config.hidden_size),
            max_positions=self._max_positions,
            eos_token_ids=eos_token_ids,
            dtype=str(self.dtype).removeprefix("torch."),
            weight_bytes=weight_bytes,
            head_bytes=head_bytes,
            layers_bytes=weight_bytes - head_bytes,
            fingerprint=fingerprint,
            supports_layer_subsets=False,
            row_stable=False,
        )
        self._check_numbers()

    @property
    def info(self) -> ModelInfo:
        return self._info

    def new_cache(self, *, num_slots: int, capacity: int) -> KVCache:
        return KVCache(
            self._shape,
            num_slots=num_slots,
            capacity=capacity,
            dtype=self.dtype,
            device=self.device,
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
        """See ``Model.forward``. Raises UnsupportedError for a subset of layers or a capture."""
        if layers is not None and tuple(layers) != tuple(range(self._shape.num_layers)):
            raise UnsupportedError(
                f"early_exit needs single layers, which the fallback for {self._family} cannot run"
            )
        if capture:
            raise UnsupportedError(
                f"captured layers are not available from the fallback for {self._family}"
            )
        attention = CacheAttention(rows, cache)
        with listening(attention):
            out = self._base(
                input_ids=rows.token_ids, position_ids=self._positions(rows), use_cache=False
            )
        return Hidden(out.last_hidden_state)

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        """Logits by the model's own class. A trimmed head selects from the whole: right, not
        faster.
        """
        stand_in = torch.zeros(1, len(hidden), dtype=torch.int64, device=self.device)
        with self._base_returning(hidden[None]):
            output = self._module(input_ids=stand_in, use_cache=False)
        logits: torch.Tensor = output.logits[0].float()
        return logits if trimmed is None else logits.index_select(1, trimmed.token_ids)

    def top(
        self,
        hidden: torch.Tensor,
        count: int,
        trimmed: HeadRows | None = None,
        *,
        with_log_sum: bool = False,
    ) -> TopLogits:
        return top_of(self.head(hidden, trimmed), count, with_log_sum=with_log_sum)

    @torch.inference_mode()
    def trim_head(self, token_ids: Sequence[int]) -> HeadRows:
        head = self._module.get_output_embeddings()
        return gather_head_rows(head.weight, getattr(head, "bias", None), token_ids)

    def _positions(self, rows: RowBatch) -> torch.Tensor:
        """Logical positions; those of padding may lie past the model's last one and are pulled
        back.
        """
        limit = self._max_positions
        for positions, width in zip(rows.positions, rows.widths, strict=True):
            if width and int(positions[:width].max()) >= limit:
                raise EngineInputError(
                    f"position {int(positions[:width].max())} is past the last of {self._family},"
                    f" {limit - 1}; shorten the prompt or lower max_tokens"
                )
        return rows.positions.clamp(max=limit - 1)

    @contextmanager
    def _base_returning(self, hidden: torch.Tensor) -> Iterator[None]:
        """Inside the block the base model answers ``hidden``, so that only the head is computed."""

        def answer(*_: Any, **__: Any) -> ModelOutput:
            return self._output_type(last_hidden_state=hidden)

        self._base.forward = answer
        try:
            yield
        finally:
            del self._base.forward

    @torch.inference_mode()
    def _check_numbers(self) -> None:
        """Compare with the model's own eager attention on a probe."""
        length = min(_PROBE_LENGTH, self._max_positions)
        ids = (torch.arange(length, device=self.device) * 7 + 3)[None] % self._info.vocab_size
        cache = self.new_cache(num_slots=1, capacity=length)
        rows = RowBatch(
            slots=(cache.allocate(),),
            token_ids=ids,
            positions=torch.arange(length, device=self.device)[None],
            widths=(length,),
        )
        ours = self.head(self.forward(rows, cache).last[0])
        self._module.set_attn_implementation("eager")
        try:
            theirs = self._module(input_ids=ids, use_cache=False).logits[0].float()
        finally:
            self._module.set_attn_implementation(IMPLEMENTATION)
        tolerance = (1e-3 if self.dtype == torch.float32 else 0.1) * float(theirs.std())
        if float((ours - theirs).abs().mean()) > tolerance:
            raise UnsupportedError(
                f"model type {self._family} adds something to attention that transformers'"
                " hook does"
                " not carry (its logits change); it needs an engine class of its own"
            )


def load_fallback(
    folder: Path,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    fingerprint: str,
    eos_token_ids: tuple[int, ...],
) -> FallbackModel:
    """Load a checkpoint folder, whose configuration is ``config``, through transformers. Raises
    EngineInputError for one that lacks a tensor (transformers would invent it), UnsupportedError
    for a model that the fallback refuses.
    """
    register()
    try:
        with quiet_transformers():
            module, found = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=IMPLEMENTATION,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # transformers raises bare ones for values it does not expect
        raise UnsupportedError(f"transformers cannot load {folder}: {reason_of(error)}") from error
    missing = sorted(found["missing_keys"])
    if missing:
        raise EngineInputError(
            f"the checkpoint {folder} lacks {len(missing)} tensors, first {missing[0]};"
            " it is incomplete or its config is another model's"
        )
    return FallbackModel(
        module.to(device),
        name=folder.resolve().name,
        fingerprint=fingerprint,
        eos_token_ids=eos_token_ids,
    )
