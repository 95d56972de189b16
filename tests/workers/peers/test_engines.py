"""The engine scripts of llama-cpp-python and vLLM against modules made for the test: what they ask
of those libraries, and what they make of the answers.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from draftsmith.workers.peers.catalogue import ENGINES

ORDER = {
    "model": "/models/m.gguf",
    "dtype": "bfloat16",
    "device": "cpu",
    "threads": 2,
    "context": 512,
    "concurrency": 1,
    "settings": {},
}


def engine_class(script: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"tested_{script}", ENGINES / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Engine


class Llama:
    """Counts upwards from the prompt's last token; a reset is asked for before each prompt."""

    metadata = {"general.file_type": "32"}

    def __init__(self, path: str, **settings: Any) -> None:
        self.path, self.settings, self.resets = path, settings, 0

    def reset(self) -> None:
        self.resets += 1

    def generate(self, tokens: list[int], **sampling: Any) -> Iterator[int]:
        assert sampling == {"temp": 0.0, "top_k": 1, "repeat_penalty": 1.0}
        token = tokens[-1]
        while True:
            token += 1
            yield token


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    module, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    module.Llama, module.__version__ = Llama, "0.0"  # type: ignore[attr-defined]
    speculative.LlamaPromptLookupDecoding = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    return engine_class("llama_cpp_engine")


def test_llama_ends_at_stop_tokens_and_at_the_length(llama: Any) -> None:
    engine = llama({**ORDER, "concurrency": 4})
    outputs, prefill_s = engine.generate([[3, 5], [20]], 4, [7])
    assert outputs == [[6, 7], [21, 22, 23, 24]] and prefill_s > 0.0
    assert engine._llama.resets == 2
    assert engine.note == "m.gguf in bfloat16, one request at a time"
    assert engine._llama.settings["n_ctx"] == 512
    assert engine._llama.settings["n_threads"] == engine._llama.settings["n_threads_batch"] == 2


def test_llama_looks_prompts_up_when_asked(llama: Any) -> None:
    settings = {"model": "/other/n.gguf", "prompt_lookup_num_tokens": 10, "n_batch": 64}
    engine = llama({**ORDER, "settings": settings})
    assert engine._llama.path == "/other/n.gguf" and engine._llama.settings["n_batch"] == 64
    draft = engine._llama.settings["draft_model"]
    assert (draft.num_pred_tokens, draft.max_ngram_size) == (10, 2)
    with pytest.raises(ValueError, match="is no GGUF file"):
        llama({**ORDER, "model": "/models/folder"})


def test_vllm_is_asked_for_greedy_tokens_without_prefix_caching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    class LLM:
        def __init__(self, **settings: Any) -> None:
            asked.update(settings)

        def generate(self, prompts: Any, sampling: Any, use_tqdm: bool) -> list[Any]:
            asked.update(prompts=prompts, sampling=sampling)
            output = SimpleNamespace(token_ids=(4, 5))
            return [SimpleNamespace(outputs=[output]) for _ in prompts]

    module = ModuleType("vllm")
    module.LLM, module.SamplingParams, module.__version__ = LLM, dict, "0.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    for name in ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"):
        monkeypatch.setenv(name, "set")  # restored afterwards, and never overridden
    speculative = {"method": "ngram", "num_speculative_tokens": 5}
    order = {**ORDER, "concurrency": 8, "settings": {"speculative_config": speculative}}
    outputs, prefill_s = engine_class("vllm_engine")(order).generate([[1], [2, 3]], 6, [9])
    assert outputs == [[4, 5], [4, 5]] and prefill_s is None
    assert asked["speculative_config"] == speculative
    assert asked["enable_prefix_caching"] is False
    assert (asked["max_model_len"], asked["max_num_seqs"]) == (512, 8)
    assert asked["prompts"] == [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2, 3]}]
    sampling = asked["sampling"]
    assert (sampling["temperature"], sampling["max_tokens"]) == (0.0, 6)
    assert sampling["stop_token_ids"] == [9] and sampling["ignore_eos"] is True
