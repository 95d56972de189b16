"""The decoder gives transformers' logits for every family, in whatever portions the tokens come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rows import commit_chain, plain_logits
from tinymodels import decoder_of, random_reference, tiny_config, tiny_decoder

from draftsmith.engine.errors import CapacityError, EngineInputError
from draftsmith.engine.types import RowBatch

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
TWO_BASES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama derived head_dim": ("llama", {"head_dim": None}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "linear rope, old form": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "yarn rope": ("llama", {"rope_parameters": YARN}),
    "mistral window": ("mistral", {}),
    "mistral no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 window on upper layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3 biases": ("qwen3", {"attention_bias": True}),
    "smollm3 untied": ("smollm3", {"no_rope_layers": [1, 0], "tie_word_embeddings": False}),
    "smollm3 window": (
        "smollm3",
        {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 4},
    ),
    "phi3 partial rotation": ("phi3", {"partial_rotary_factor": 0.5}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {}),
    "gemma2 low caps": (
        "gemma2",
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": ("gemma3_text", {}),
    "gemma3 two bases": ("gemma3_text", {"rope_parameters": TWO_BASES}),
}
IDS = torch.randint(2, 64, (23,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str) -> None:
    family, overrides = CASES[case]
    reference = random_reference(tiny_config(family, **overrides), seed=3)
    with torch.no_grad():
        expected = reference(torch.tensor([IDS])).logits[0]
    decoder = decoder_of(reference)

    full = plain_logits(decoder, IDS)
    torch.testing.assert_close(full, expected, atol=1e-4, rtol=0)

    for portions in ([1] * len(IDS), [9, 1, 6, 7]):
        cache = decoder.new_cache(num_slots=2, capacity=len(IDS))
        slot = cache.allocate()
        parts, start = [], 0
        for portion in portions:
            parts.append(commit_chain(decoder, cache, slot, IDS[start : start + portion]))
            start += portion
        torch.testing.assert_close(torch.cat(parts), expected, atol=1e-4, rtol=0)


def test_bf16_weights_keep_fp32_activations_and_a_bf16_cache() -> None:
    decoder = tiny_decoder(seed=5, dtype=torch.bfloat16)
    exact = tiny_decoder(seed=5)
    assert decoder.info.dtype == "bfloat16"
    assert decoder.info.weight_bytes < exact.info.weight_bytes
    cache = decoder.new_cache(num_slots=1, capacity=8)
    assert cache.k.dtype == torch.bfloat16
    logits = plain_logits(decoder, IDS)
    assert logits.dtype == torch.float32
    spread = plain_logits(exact, IDS).std()
    assert (logits - plain_logits(exact, IDS)).abs().max() < 0.1 * spread


def test_layer_subset_equals_a_model_of_those_layers() -> None:
    config = tiny_config("qwen3", num_layers=4)
    reference = random_reference(config, seed=9)
    decoder = decoder_of(reference)
    kept = [0, 2]
    reference.model.layers = torch.nn.ModuleList(reference.model.layers[i] for i in kept)
    reference.config.num_hidden_layers = len(kept)
    for index, layer in enumerate(reference.model.layers):
        layer.self_attn.layer_idx = index
    with torch.no_grad():
        expected = reference(torch.tensor([IDS])).logits[0]

    cache = decoder.new_cache(num_slots=1, capacity=len(IDS))
    slot = cache.allocate()
    rows = _rows(slot, IDS)
    hidden = decoder.forward(rows, cache, layers=kept)
    torch.testing.assert_close(decoder.head(hidden.last[0]), expected, atol=1e-4, rtol=0)
    assert not cache.k[[1, 3]].any(), "skipped layers must not be written"


def test_captured_layers_are_the_residual_streams_after_them() -> None:
    decoder = tiny_decoder(num_layers=3)
    cache = decoder.new_cache(num_slots=1, capacity=32)
    rows = _rows(cache.allocate(), IDS)
    full = decoder.forward(rows, cache, capture=(0, 2))
    assert sorted(full.captured) == [0, 2]
    torch.testing.assert_close(full.captured[2], full.last, atol=0, rtol=0)
    left_after_first = decoder.forward(rows, cache, layers=(0,)).last
    torch.testing.assert_close(full.captured[0], left_after_first, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("layers", "capture", "message"),
    [
        ((1, 0), (), "must ascend"),
        ((0, 0), (), "must ascend"),
        ((0, 2), (), r"within 0\.\.1"),
        ((-1,), (), "must ascend"),
        ((0,), (1,), "layer 1 is to be captured but is not run"),
    ],
)
def test_bad_layer_choices_are_refused(
    layers: tuple[int, ...], capture: tuple[int, ...], message: str
) -> None:
    decoder = tiny_decoder()
    cache = decoder.new_cache(num_slots=1, capacity=32)
    rows = _rows(cache.allocate(), IDS)
    with pytest.raises(EngineInputError, match=message):
        decoder.forward(rows, cache, layers=layers, capture=capture)


def test_rows_that_do_not_fit_leave_the_cache_untouched() -> None:
    decoder = tiny_decoder()
    cache = decoder.new_cache(num_slots=1, capacity=len(IDS) - 1)
    slot = cache.allocate()
    with pytest.raises(CapacityError, match="do not fit"):
        decoder.forward(_rows(slot, IDS), cache)
    assert not cache.k.any()


def test_trimmed_head_scores_the_named_ids_only() -> None:
    decoder = tiny_decoder(family="gemma2")
    cache = decoder.new_cache(num_slots=1, capacity=32)
    hidden = decoder.forward(_rows(cache.allocate(), IDS), cache).last[0]
    trimmed = decoder.trim_head([40, 3, 17, 3])
    assert trimmed.token_ids.tolist() == [3, 17, 40]
    expected = decoder.head(hidden)[:, [3, 17, 40]]
    torch.testing.assert_close(decoder.head(hidden, trimmed), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("trim", [None, range(1, 64, 3)])
@pytest.mark.parametrize("family", ["llama", "gemma2"])  # the second caps its logits
def test_top_is_the_best_of_the_head(family: str, trim: range | None) -> None:
    decoder = tiny_decoder(family=family)
    cache = decoder.new_cache(num_slots=1, capacity=32)
    hidden = decoder.forward(_rows(cache.allocate(), IDS), cache).last[0]
    trimmed = None if trim is None else decoder.trim_head(trim)
    logits = decoder.head(hidden, trimmed)
    best = decoder.top(hidden, 5, trimmed, with_log_sum=True)
    expected = logits.topk(5)
    tolerance = 0.0 if decoder.config.final_softcap is None else 1e-4
    torch.testing.assert_close(best.values, expected.values, atol=tolerance, rtol=0)
    assert torch.equal(best.columns, expected.indices)
    torch.testing.assert_close(best.log_sums, logits.logsumexp(-1), atol=1e-4, rtol=0)
    assert decoder.top(hidden, 1, trimmed).log_sums is None


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "at least one token id"), ([5, 64], r"token id 64.*0\.\.63"), ([-1], "token id -1")],
)
def test_bad_draft_vocabularies_are_refused(ids: list[int], message: str) -> None:
    with pytest.raises(EngineInputError, match=message):
        tiny_decoder().trim_head(ids)


def _rows(slot: int, token_ids: list[int]) -> RowBatch:
    return RowBatch(
        slots=(slot,),
        token_ids=torch.tensor([token_ids]),
        positions=torch.arange(len(token_ids))[None],
        widths=(len(token_ids),),
    )
