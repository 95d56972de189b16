"""transformers' ``generate``, for ``serve.py``: plain, prompt lookup, or with an assistant model.

Settings: ``assistant_model`` (a folder), ``attn_implementation``, ``model`` (another path than the
target's); everything else goes into the ``GenerationConfig`` (``prompt_lookup_num_tokens``,
``num_assistant_tokens`` ...). Assisted generation takes one request at a time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers

ASSISTING = ("num_assistant_tokens", "num_assistant_tokens_schedule")


class Engine:
    """``versions`` and ``note`` describe what was loaded; requests run in left-padded batches."""

    def __init__(self, order: dict[str, Any]) -> None:
        torch.set_num_threads(order["threads"])
        torch.set_grad_enabled(False)
        settings = dict(order["settings"])
        dtype, self._device = getattr(torch, order["dtype"]), order["device"]
        extra = {key: settings.pop(key) for key in ("attn_implementation",) if key in settings}
        self._model = _load(settings.pop("model", order["model"]), dtype, self._device, extra)
        self._assistant = None
        if "assistant_model" in settings:
            self._assistant = _load(settings.pop("assistant_model"), dtype, self._device, {})
            for key in [key for key in ASSISTING if key in settings]:
                setattr(self._assistant.generation_config, key, settings.pop(key))
        unknown = [key for key in settings if not hasattr(transformers.GenerationConfig(), key)]
        if unknown:
            raise ValueError(f"{unknown[0]} is no setting of transformers' GenerationConfig")
        self._settings = settings
        assisted = self._assistant is not None or "prompt_lookup_num_tokens" in settings
        self._group = 1 if assisted else order["concurrency"]
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.note = "one request at a time" if self._group < order["concurrency"] else ""

    def generate(
        self, prompts: list[list[int]], max_tokens: int, stop_ids: list[int]
    ) -> tuple[list[list[int]], float]:
        """Outputs in order, and the seconds until the first token, summed over the batches."""
        outputs, prefill_s = [], 0.0
        for begin in range(0, len(prompts), self._group):
            first = _FirstToken()
            outputs += self._batch(
                prompts[begin : begin + self._group], max_tokens, stop_ids, first
            )
            prefill_s += first.seconds
        return outputs, prefill_s

    def _batch(
        self, prompts: list[list[int]], max_tokens: int, stop_ids: list[int], first: _FirstToken
    ) -> list[list[int]]:
        pad, width = (stop_ids or [0])[0], max(len(prompt) for prompt in prompts)
        rows = [[pad] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        config = transformers.GenerationConfig(
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=stop_ids or None,
            pad_token_id=pad,
            **self._settings,
        )
        made = self._model.generate(
            torch.tensor(rows, device=self._device),
            attention_mask=torch.tensor(mask, device=self._device),
            generation_config=config,
            stopping_criteria=transformers.StoppingCriteriaList([first]),
            **({} if self._assistant is None else {"assistant_model": self._assistant}),
        )
        return [_until_stop(row, stop_ids) for row in made[:, width:].tolist()]


class _FirstToken:
    """A stopping criterion that stops nothing: it notes when it was first asked."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self.seconds = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if not self.seconds:
            if input_ids.is_cuda:
                torch.cuda.synchronize(input_ids.device)
            self.seconds = time.perf_counter() - self._begin
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _load(name: str, dtype: torch.dtype, device: str, extra: dict[str, Any]) -> Any:
    """The model with an empty generation config: what a checkpoint says there (penalties, say) is
    no part of greedy decoding.
    """
    path, key = (
        Path(name),
        "dtype" if int(transformers.__version__.split(".")[0]) > 4 else "torch_dtype",
    )
    where = {"gguf_file": path.name} if path.is_file() else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent if path.is_file() else path, **{key: dtype}, **where, **extra
    )
    model.generation_config = transformers.GenerationConfig()
    return model.to(device).eval()


def _until_stop(token_ids: list[int], stop_ids: list[int]) -> list[int]:
    """A batch pads finished rows: what follows the first stop token is no output."""
    for index, token in enumerate(token_ids):
        if token in stop_ids:
            return token_ids[: index + 1]
    return token_ids
