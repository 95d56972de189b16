"""llama-cpp-python's ``Llama.generate``, for ``serve.py``: plain, or with its prompt lookup.

Settings: ``model`` (a GGUF file; the target's path where that is one), ``prompt_lookup_num_tokens``
with ``max_matching_ngram_size`` (its ``LlamaPromptLookupDecoding``); everything else goes to
``Llama``. It decodes one request at a time whatever the concurrency, in the numbers of its file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

FILE_TYPES = {"0": "float32", "1": "float16", "32": "bfloat16"}


class Engine:
    def __init__(self, order: dict[str, Any]) -> None:
        settings = dict(order["settings"])
        path = settings.pop("model", order["model"])
        if not str(path).endswith(".gguf"):
            raise ValueError(
                f'{Path(path).name} is no GGUF file: name one in the settings, {{"model": "FILE"}}'
            )
        lookup = settings.pop("prompt_lookup_num_tokens", None)
        if lookup is not None:
            ngram = settings.pop("max_matching_ngram_size", 2)
            settings["logits_all"] = True
            settings["draft_model"] = LlamaPromptLookupDecoding(
                max_ngram_size=ngram, num_pred_tokens=lookup
            )
        settings.setdefault("n_gpu_layers", 0 if order["device"] == "cpu" else -1)
        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=order["context"],
            n_threads=order["threads"],
            n_threads_batch=order["threads"],
            verbose=False,
            **settings,
        )
        kind = str(self._llama.metadata.get("general.file_type", "unknown"))
        self.versions = {"llama-cpp-python": llama_cpp.__version__}
        self.note = f"{Path(path).name} in {FILE_TYPES.get(kind, f'file type {kind}')}"
        if order["concurrency"] > 1:
            self.note += ", one request at a time"

    def generate(
        self, prompts: list[list[int]], max_tokens: int, stop_ids: list[int]
    ) -> tuple[list[list[int]], float]:
        """Outputs in order, and the seconds until the first token, summed over the requests."""
        outputs, prefill_s = [], 0.0
        for prompt in prompts:
            self._llama.reset()  # else the longest common prefix with the last call is not computed
            begin = time.perf_counter()
            output: list[int] = []
            for token in self._llama.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
                if not output:
                    prefill_s += time.perf_counter() - begin
                output.append(int(token))
                if token in stop_ids or len(output) >= max_tokens:
                    break
            outputs.append(output)
        return outputs, prefill_s
