"""Other transformers models through the same protocol, or a refusal that names what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rows import commit_chain, logits_of, plain_logits, tree_rows
from tinymodels import random_reference, tiny_tokenizer
from transformers import PretrainedConfig

from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.fallback import FallbackModel
from draftsmith.engine.model.hook import IMPLEMENTATION, register
from draftsmith.engine.model.loading import load_target
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import RowBatch

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "learned positions": ("GPT2Config", GPT2 | {"bos_token_id": 0, "eos_token_id": 1}),
    "parallel residual, partial rotation": ("GPTNeoXConfig", SIZES),
    "phi": ("PhiConfig", SIZES),
    "norms after the blocks": ("Olmo2Config", SIZES),
    "logit scale, window": ("Cohere2Config", SIZES | {"sliding_window": 5}),
    "mixture of experts": ("MixtralConfig", SIZES | {"num_local_experts": 4}),
}
IDS = torch.randint(2, 64, (16,), generator=torch.Generator().manual_seed(5)).tolist()


def config_of(case: str) -> PretrainedConfig:
    name, values = CASES[case]
    config: PretrainedConfig = getattr(transformers, name)(**values)
    return config


def fallback_of(config: PretrainedConfig, seed: int = 0) -> FallbackModel:
    register()
    module = random_reference(config, seed)
    module.set_attn_implementation(IMPLEMENTATION)
    return FallbackModel(module)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers_and_tree_rows_their_path(case: str) -> None:
    config = config_of(case)
    with torch.no_grad():
        expected = random_reference(config, 3)(torch.tensor([IDS])).logits[0]
    model = fallback_of(config, 3)
    torch.testing.assert_close(plain_logits(model, IDS), expected, atol=1e-4, rtol=0)

    cache = model.new_cache(num_slots=2, capacity=32)
    slot = cache.allocate()
    steps = [commit_chain(model, cache, slot, [token]) for token in IDS]
    torch.testing.assert_close(torch.cat(steps), expected, atol=1e-4, rtol=0)

    tree = DraftTree((21, 33, 14), (-1, -1, 1))
    logits = logits_of(model, tree_rows(cache, slot, 7, tree), cache)[0]
    for row, path in enumerate(([], [21], [33], [33, 14])):
        plain = plain_logits(model, [*IDS, 7, *path])[-1]
        torch.testing.assert_close(logits[row], plain, atol=1e-5, rtol=0)
    cache.keep(slot, [0, 2, 3])
    after = commit_chain(model, cache, slot, [40])[0]
    plain = plain_logits(model, [*IDS, 7, 33, 14, 40])[-1]
    torch.testing.assert_close(after, plain, atol=1e-5, rtol=0)


def test_ragged_batch_equals_solo_runs() -> None:
    model = fallback_of(config_of("learned positions"))
    cache = model.new_cache(num_slots=2, capacity=64)
    slots = [cache.allocate(), cache.allocate()]
    prompts = [IDS[:4], (IDS * 4)[:62]]
    for slot, prompt in zip(slots, prompts, strict=True):
        commit_chain(model, cache, slot, prompt)
    rows = RowBatch(
        slots=tuple(slots),
        token_ids=torch.tensor([[4, 9, 11], [8, 0, 0]]),
        positions=torch.tensor([[4, 5, 6], [62, 63, 64]]),  # the last is padding past the table
        widths=(3, 1),
    )
    logits = logits_of(model, rows, cache)
    solo = plain_logits(model, [*prompts[0], 4, 9, 11])[-3:]
    torch.testing.assert_close(logits[0], solo, atol=1e-5, rtol=0)
    solo = plain_logits(model, [*prompts[1], 8])[-1]
    torch.testing.assert_close(logits[1, 0], solo, atol=1e-5, rtol=0)


def test_trimmed_head_and_subsets() -> None:
    model = fallback_of(config_of("logit scale, window"))
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    trimmed = model.trim_head([30, 4])
    assert torch.equal(model.head(hidden, trimmed), model.head(hidden)[:, [4, 30]])
    best = model.top(hidden, 2, trimmed, with_log_sum=True)
    assert torch.equal(best.values, model.head(hidden, trimmed).sort(descending=True).values)
    assert torch.equal(best.columns, model.head(hidden, trimmed).argsort(descending=True))
    assert best.log_sums is not None
    assert torch.equal(best.log_sums, model.head(hidden, trimmed).logsumexp(-1))
    cache = model.new_cache(num_slots=1, capacity=4)
    rows = RowBatch(
        slots=(cache.allocate(),),
        token_ids=torch.zeros(1, 1, dtype=torch.int64),
        positions=torch.zeros(1, 1, dtype=torch.int64),
        widths=(1,),
    )
    assert not model.info.supports_layer_subsets
    with pytest.raises(UnsupportedError, match="early_exit.*cohere2"):
        model.forward(rows, cache, layers=(0,))
    with pytest.raises(UnsupportedError, match="captured layers.*cohere2"):
        model.forward(rows, cache, capture=(0,))


def test_a_position_past_the_last_is_refused() -> None:
    model = fallback_of(config_of("learned positions"))
    with pytest.raises(EngineInputError, match="position 64 is past the last of gpt2, 63"):
        plain_logits(model, (IDS * 5)[:65])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": (
        "BloomConfig",
        {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "2 of 2 layers of model type bloom do not call transformers' attention hook",
    ),
    "gpt_oss": ("GptOssConfig", SIZES | {"head_dim": 8, "num_local_experts": 4}, "s_aux"),
    "roberta": ("RobertaConfig", SIZES | {"is_decoder": True}, "not carry"),
    "dynamic": (
        "Olmo2Config",
        SIZES | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "'dynamic' of olmo2 depends on the longest row",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_the_hook_cannot_carry_are_refused_by_name(case: str) -> None:
    name, values, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message):
        fallback_of(getattr(transformers, name)(**values))


def test_a_folder_of_another_family_loads_through_the_fallback(tmp_path: Path) -> None:
    reference = random_reference(config_of("norms after the blocks"), 8)
    reference.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    target = load_target(TargetRef(path=str(tmp_path), dtype="float32"))
    assert target.model.info.family == "olmo2"
    assert target.model.info.eos_token_ids == (1,)
    with torch.no_grad():
        expected = reference(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(plain_logits(target.model, IDS), expected, atol=1e-4, rtol=0)


def test_a_folder_of_another_family_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    random_reference(config_of("norms after the blocks")).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EngineInputError, match=r"lacks 1 tensors, first .*up_proj"):
        load_target(TargetRef(path=str(tmp_path), dtype="float32"))
