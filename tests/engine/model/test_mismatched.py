"""Configurations that belong to no model, or to another than the weights, are refused by name; what
only looks odd is read.
"""

from __future__ import annotations

import codecs
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rows import plain_logits
from safetensors.torch import load_file, save_file
from tinymodels import save_tiny, tiny_decoder
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.facts import read_facts
from draftsmith.engine.model.loading import LoadedTarget, load_target

IDS = [5, 9, 31, 12, 44, 8, 27]
DEEP = "[" * 200_000


def load(folder: Path, **fields: Any) -> LoadedTarget:
    return load_target(TargetRef(path=str(folder), **{"dtype": "float32", **fields}))


def edit_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def add_mark(folder: Path) -> None:
    file = folder / "config.json"
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())


LIMIT = "it must be a finite number above 0"
ROTARY: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, f"factor .* is 0; {LIMIT}"),
    ({"rope_scaling": {"rope_type": "linear", "factor": -2.0}}, f"factor .* is -2.0; {LIMIT}"),
    ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, f"factor .* is 'x'; {LIMIT}"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": float("inf")}}, f"factor .* is inf; {LIMIT}"),
    ({"rope_parameters": {"rope_theta": "x"}}, f"rope_theta .* is 'x'; {LIMIT}"),
    ({"rope_parameters": {"rope_theta": 0}}, f"rope_theta .* is 0; {LIMIT}"),
    ({"rope_parameters": {"rope_theta": -1e4}}, f"rope_theta .* is -10000.0; {LIMIT}"),
    ({"rope_parameters": {"rope_theta": float("nan")}}, f"rope_theta .* is nan; {LIMIT}"),
    ({"rope_parameters": {"rope_theta": 10**400}}, LIMIT),
    (
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": "x",
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        "transformers cannot read .*'validate_rope': .*; mend config.json",
    ),
    (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "attention_factor": float("nan"),
            }
        },
        "rotary scaling 'yarn' .* not finite",
    ),
]


@pytest.mark.parametrize(("values", "message"), ROTARY, ids=lambda value: str(value)[:70])
def test_rotary_numbers_that_give_no_rotation(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path)
    edit_config(tmp_path, **values)
    with pytest.raises(EngineInputError, match=message):
        load(tmp_path)


NAMED: list[tuple[dict[str, Any], str]] = [
    ({"num_attention_heads": 0}, "num_attention_heads in .* is 0; it must be at least 1: mend"),
    ({"head_dim": -16}, "head_dim in .* is -16; it must be at least 1: mend"),
    ({"num_hidden_layers": "x"}, "'num_hidden_layers': .*expected int, got str.*; mend config"),
    ({"rms_norm_eps": "x"}, "'rms_norm_eps': .*expected float, got str.*; mend config"),
]


@pytest.mark.parametrize(("values", "message"), NAMED, ids=str)
@pytest.mark.parametrize("reader", [load, lambda folder: read_facts(str(folder))])
def test_a_refused_field_is_named_with_its_reason(
    reader: Callable[[Path], object], values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path)
    edit_config(tmp_path, **values)
    with pytest.raises(EngineInputError, match=message) as caught:
        reader(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [{"sliding_window": "x"}, {"layer_types": 5}], ids=str)
def test_values_of_a_wrong_type_are_no_traceback(values: dict[str, Any], tmp_path: Path) -> None:
    save_tiny(tmp_path, family="mistral")
    edit_config(tmp_path, **values)
    with pytest.raises(EngineInputError):
        load(tmp_path)


def _deep_header(folder: Path) -> None:
    content = DEEP.encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(content)) + content)


def _deep_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(DEEP)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").write_text(DEEP), "config.json is not JSON .*copy it again"),
        (_deep_header, "not a readable safetensors file .*copy or download it again"),
        (_deep_index, "is not a shard index .*copy it again"),
        (
            lambda f: (f / "generation_config.json").write_text(DEEP),
            "generation_config.json cannot be read .*fix or remove it",
        ),
        (lambda f: (f / "tokenizer.json").write_text(DEEP), "has no usable tokenizer"),
    ],
    ids=("config", "header", "index", "generation config", "tokenizer"),
)
def test_json_nested_without_end_is_refused_like_other_broken_json(
    spoil: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path)
    spoil(tmp_path)
    with pytest.raises(EngineInputError, match=message):
        load(tmp_path)


def test_a_config_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=2)
    plain = load(tmp_path).model.info.fingerprint
    add_mark(tmp_path)
    target = load(tmp_path)
    assert torch.equal(plain_logits(target.model, IDS), plain_logits(tiny_decoder(2), IDS))
    assert target.model.info.fingerprint == plain
    assert target.tokenizer.decode(target.tokenizer("draft 12")["input_ids"]) == "draft 12"
    assert read_facts(str(tmp_path)).num_layers == 2


def test_a_byte_order_mark_of_a_family_of_transformers(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    expected = plain_logits(load(tmp_path).model, IDS)
    add_mark(tmp_path)
    assert torch.equal(plain_logits(load(tmp_path).model, IDS), expected)


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3_text"])
def test_more_layers_than_the_config_says_are_refused(family: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, family=family, num_layers=3)
    types = {"layer_types": ["sliding_attention", "full_attention"]} if "gemma" in family else {}
    edit_config(tmp_path, num_hidden_layers=2, **types)
    message = r"layers up to model\.layers\.2, its config says num_hidden_layers 2; .* together"
    with pytest.raises(EngineInputError, match=message):
        load(tmp_path)


def test_harmless_tensors_of_older_checkpoints_are_no_reason_to_refuse(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=2, tie_word_embeddings=True)
    expected = plain_logits(load(tmp_path).model, IDS)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit_tensors(tmp_path, add)
    assert torch.equal(plain_logits(load(tmp_path).model, IDS), expected)


@pytest.mark.parametrize(("scale", "what"), [(1e10, "NaN"), (1e30, "all equal")])
def test_weights_whose_products_overflow_are_refused(
    scale: float, what: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path)
    edit_tensors(tmp_path, lambda tensors: [t.mul_(scale) for t in tensors.values()])
    message = f"logits of .* are {what} after every token tried; .*bfloat16 or float32"
    with pytest.raises(EngineInputError, match=message):
        load(tmp_path)


def test_a_token_whose_embedding_is_zero_is_no_reason_to_refuse(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors["model.embed_tokens.weight"][0].zero_())
    logits = plain_logits(load(tmp_path).model, [0, 5])
    assert not logits[0].any() and logits[1].any()


def test_the_type_that_bf12_is_refused_for_has_its_plain_name(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with pytest.raises(EngineInputError, match="on the CPU, not of float32 on cpu; use weights"):
        load(tmp_path, weights="bf12")


def test_an_unknown_family_says_what_transformers_says(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_config(tmp_path, model_type="no_such_family")
    with pytest.raises(UnsupportedError, match="model type `no_such_family` .* out of date;"):
        load(tmp_path)
