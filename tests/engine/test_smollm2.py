"""The embedded model, for real: stock equals transformers, speculation equals stock, on bundled
prompts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftsmith.engine.forcing import EmittedOutput, force_outputs
from draftsmith.engine.job import DraftInputs, TargetRef
from draftsmith.engine.model.loading import LoadedTarget, load_target
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.prompts import requests_for_turn
from draftsmith.engine.types import Request, Sampling, SpecConfig
from draftsmith.engine.workload import bundled_workload_path, limit, read_workload

pytestmark = pytest.mark.smollm2

CONFIGS = {
    "ngram": SpecConfig(drafter="ngram", block_size=5),
    "suffix": SpecConfig(drafter="suffix", block_size=8, match_max=24),
    "recycle": SpecConfig(drafter="recycle", tree="static", block_size=4, tree_budget=12),
    "exit": SpecConfig(drafter="early_exit", exit_layer=20, block_size=3, draft_vocab=8192),
    "exit-tree": SpecConfig(
        drafter="early_exit",
        exit_layer=24,
        tree="dynamic",
        tree_budget=6,
        tree_top_k=2,
        block_size=3,
    ),
}


def load(path: Path, dtype: str) -> LoadedTarget:
    return load_target(TargetRef(path=str(path), dtype=dtype))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def target(smollm2_path: Path) -> LoadedTarget:
    return load(smollm2_path, "bfloat16")


def requests_of(loaded: LoadedTarget, count: int, sampling: Sampling) -> list[Request]:
    rows = limit(read_workload(bundled_workload_path()).rows, count)
    return list(requests_for_turn(rows, 1, {}, loaded.tokenizer, sampling).requests)


def test_greedy_stock_equals_transformers_token_for_token(smollm2_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    loaded = load(smollm2_path, "float32")
    requests = requests_of(loaded, 8, Sampling(max_tokens=16))
    ours = NativeEngine(loaded.model, tokenizer=loaded.tokenizer).run(
        requests, SpecConfig(), concurrency=4
    )
    reference = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32).eval()
    for request, completion in zip(requests, ours.completions, strict=True):
        prompt = torch.tensor([request.prompt_ids])
        with torch.inference_mode():
            output = reference.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=16,
                do_sample=False,
                pad_token_id=0,
            )
        assert completion.token_ids == tuple(output[0, prompt.shape[1] :].tolist())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_bf16_speculation_is_lossless(target: LoadedTarget, temperature: float) -> None:
    sampling = Sampling(max_tokens=20, temperature=temperature)
    requests = requests_of(target, 4, sampling)
    requests = [
        replace(r, sampling=replace(r.sampling, max_tokens=20 - 3 * i))
        for i, r in enumerate(requests)
    ]
    engine = NativeEngine(target.model, tokenizer=target.tokenizer)
    stock = engine.run(requests, SpecConfig()).completions
    inputs = DraftInputs(draft_vocab_ids=tuple(range(16_384)))
    for name, config in CONFIGS.items():
        done = engine.run(requests, config, concurrency=4, inputs=inputs).completions
        if target.model.info.row_stable:  # no ties needed: bit for bit
            assert [c.token_ids for c in done] == [c.token_ids for c in stock], name
            if name != "recycle":  # equal outputs need forcing once only
                continue
        emitted = [EmittedOutput(c.request_id, c.token_ids, c.stop_reason) for c in done]
        verdicts = force_outputs(
            target.model, requests, emitted, margin_noise=0.1, tokenizer=target.tokenizer
        )
        assert all(v.judgement in ("exact", "tie") for v in verdicts), name


def test_the_repeating_prompts_accept_looked_up_tokens(target: LoadedTarget) -> None:
    """A drafter that never gets a token accepted would pass every equality test."""
    rows = [row for row in read_workload(bundled_workload_path()).rows if row.category == "edit"]
    requests = requests_for_turn(
        rows[:2], 1, {}, target.tokenizer, Sampling(max_tokens=32)
    ).requests
    engine = NativeEngine(target.model, tokenizer=target.tokenizer)
    done = engine.run(requests, CONFIGS["suffix"]).completions
    assert sum(step.accepted for c in done for step in c.steps) > 5
