"""vLLM's offline ``LLM.generate``, for ``serve.py``: stock, or with a ``speculative_config``.

Settings: ``model`` (another path than the target's); everything else goes to ``LLM``, as
``{"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}}``. Prefix caching is off
unless asked for: every prompt is timed with its prefill.
"""

from __future__ import annotations

import os
from typing import Any

import vllm

KV_SPACE_GIB = "2"  # of the CPU build; its default takes half of the machine


class Engine:
    def __init__(self, order: dict[str, Any]) -> None:
        settings = dict(order["settings"])
        if order["device"] == "cpu":
            cores = sorted(os.sched_getaffinity(0))[: order["threads"]]
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_SPACE_GIB)
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        chosen = {
            "model": order["model"],
            "dtype": order["dtype"],
            "max_model_len": order["context"],
            "max_num_seqs": order["concurrency"],
            "enable_prefix_caching": False,
            **settings,
        }
        self._llm = vllm.LLM(**chosen)
        self.versions = {"vllm": vllm.__version__}
        self.note = ""

    def generate(
        self, prompts: list[list[int]], max_tokens: int, stop_ids: list[int]
    ) -> tuple[list[list[int]], None]:
        """Outputs in order. Prefill is not told: requests share their steps."""
        sampling = vllm.SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=stop_ids,
            ignore_eos=True,  # the stop ids hold it where it counts
            detokenize=False,
        )
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        made = self._llm.generate(asked, sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in made], None
