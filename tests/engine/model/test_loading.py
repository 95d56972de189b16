"""Folders load as they were saved, and every broken one is refused with value, limit and fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from rows import dense, plain_logits
from safetensors.torch import load_file, save_file
from tinymodels import random_reference, save_tiny, tiny_config, tiny_decoder

from draftsmith.engine.errors import (
    CapacityError,
    EngineEnvironmentError,
    EngineInputError,
    UnsupportedError,
)
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.loading import LoadedTarget, load_target

IDS = [5, 9, 31, 12, 44, 8, 27]


def load(folder: Path, **fields: Any) -> LoadedTarget:
    return load_target(TargetRef(path=str(folder), **{"dtype": "float32", **fields}))


def edit_config(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_saved_folder_gives_the_model_in_memory(tmp_path: Path) -> None:
    target = load(save_tiny(tmp_path, seed=2, family="qwen3"))
    assert target.source_path == tmp_path
    assert torch.equal(
        plain_logits(target.model, IDS), plain_logits(tiny_decoder(2, family="qwen3"), IDS)
    )
    text = "hello, draft 12"
    assert target.tokenizer.decode(target.tokenizer(text)["input_ids"]) == text


def test_shards_and_bin_files_load_like_one_file(tmp_path: Path) -> None:
    expected = plain_logits(tiny_decoder(2), IDS)
    sharded = save_tiny(tmp_path / "sharded", seed=2, shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert torch.equal(plain_logits(load(sharded).model, IDS), expected)

    old = save_tiny(tmp_path / "bin", seed=2)
    tensors = load_file(old / "model.safetensors")
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    assert torch.equal(plain_logits(load(old).model, IDS), expected)


def test_dtype_of_the_reference_decides(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=2)
    model = load(tmp_path, dtype="bfloat16").model
    assert model.info.dtype == "bfloat16"
    assert torch.equal(
        plain_logits(model, IDS), plain_logits(tiny_decoder(2, dtype=torch.bfloat16), IDS)
    )


def test_eos_ids_are_those_of_the_generation_config(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    assert load(tmp_path).model.info.eos_token_ids == (1,)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [9, 1]}))
    assert load(tmp_path).model.info.eos_token_ids == (1, 9)


def test_fingerprint_follows_weights_and_config_and_not_the_place(tmp_path: Path) -> None:
    first = load(save_tiny(tmp_path / "a", seed=1)).model.info.fingerprint
    assert load(save_tiny(tmp_path / "b", seed=1)).model.info.fingerprint == first
    assert load(tmp_path / "a", dtype="bfloat16").model.info.fingerprint == first
    assert load(save_tiny(tmp_path / "c", seed=2)).model.info.fingerprint != first
    edit_config(tmp_path / "a", rms_norm_eps=1e-3)
    assert load(tmp_path / "a").model.info.fingerprint != first


def test_b46_tied_without_head_uses_the_embedding(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=3, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model = load(tmp_path).model
    reference = random_reference(tiny_config(tie_word_embeddings=True), 3)
    with torch.no_grad():
        expected = reference(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(plain_logits(model, IDS), expected, atol=1e-4, rtol=0)
    trimmed = model.trim_head([3, 40])
    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(dense(trimmed.weight), embedding[[3, 40]])


def test_b46_untied_head_is_never_overwritten(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=3)
    head = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    assert torch.equal(dense(load(tmp_path).model.trim_head(range(64)).weight), head)


def test_b46_untied_without_head_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(EngineInputError, match=r"no lm_head\.weight.*tie_word_embeddings=false"):
        load(tmp_path)


def test_b46_tied_config_over_two_different_tensors_keeps_both(tmp_path: Path) -> None:
    """As transformers does: the weights say more than the flag."""
    save_tiny(tmp_path, seed=3)
    head = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    edit_config(tmp_path, tie_word_embeddings=True)
    assert torch.equal(dense(load(tmp_path).model.trim_head(range(64)).weight), head)


def test_b46_tied_head_stored_under_the_heads_name_only(tmp_path: Path) -> None:
    save_tiny(tmp_path, seed=3, tie_word_embeddings=True)
    expected = plain_logits(load(tmp_path).model, IDS)

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    edit_tensors(tmp_path, rename)
    assert torch.equal(plain_logits(load(tmp_path).model, IDS), expected)


def _drop_layer(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))


def _cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not a model")


def _lose_shard(folder: Path) -> None:
    save_tiny(folder, shard_size="40KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    max(folder.glob("model-*.safetensors")).unlink()


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _pickle(folder: Path) -> None:
    _no_weights(folder)
    torch.save(SimpleNamespace(a=1), folder / "pytorch_model.bin")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "holds a list"),
    "bad generation config": (
        lambda f: (f / "generation_config.json").write_text("{"),
        "generation_config.json cannot be read",
    ),
    "no weights": (_no_weights, "holds no weights"),
    "cut off": (_cut_off, "cut off or damaged"),
    "garbage": (_garbage, "not a readable safetensors file"),
    "lost shard": (_lose_shard, "lacks 1 of [0-9]+ weight shards"),
    "code in a pickle": (_pickle, "cannot be read as plain tensors"),
    "missing tensor": (_drop_layer, r"lacks tensor model\.layers\.1\.mlp\.up_proj\.weight"),
    "other shapes": (lambda f: edit_config(f, intermediate_size=48), "has shape .64, 32."),
    "no tokenizer": (
        lambda f: [file.unlink() for file in f.glob("tokenizer*")],
        "has no usable tokenizer",
    ),
    "tokenizer not JSON": (
        lambda f: (f / "tokenizer.json").write_text("{"),
        "has no usable tokenizer",
    ),
    "odd heads": (lambda f: edit_config(f, num_key_value_heads=3), "cannot share 3 key/value"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_refused(case: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    spoil, message = BROKEN[case]
    spoil(tmp_path)
    with pytest.raises(EngineInputError, match=message):
        load(tmp_path)


ODD_VALUES: list[dict[str, Any]] = [
    {"num_attention_heads": 0},
    {"num_attention_heads": 3},
    {"num_hidden_layers": "x"},
    {"num_hidden_layers": 0},
    {"num_hidden_layers": -2},
    {"vocab_size": 0},
    {"eos_token_id": "x"},
    {"rms_norm_eps": -1.0},
    {"rms_norm_eps": "x"},
    {"head_dim": 7},
    {"hidden_size": 0},
    {"max_position_embeddings": "many"},
]


@pytest.mark.parametrize("values", ODD_VALUES, ids=str)
def test_values_that_no_model_has_are_refused(values: dict[str, Any], tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_config(tmp_path, **values)
    with pytest.raises(EngineInputError):
        load(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_weights_that_are_no_numbers_are_refused(value: float, name: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[3] = value

    edit_tensors(tmp_path, spoil)
    with pytest.raises(EngineInputError, match=f"{name} holds NaN or infinite"):
        load(tmp_path)


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "awq": ({"quantization_config": {"quant_method": "awq"}}, "AWQ"),
    "gptq": ({"quantization_config": {"quant_method": "gptq"}}, "GPTQ"),
    "fp8": ({"quantization_config": {"quant_method": "fp8"}}, "FP8"),
    "bnb": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        r"bitsandbytes \(4-bit\)",
    ),
    "mamba": ({"model_type": "mamba"}, "mamba needs recurrent state"),
    "jamba": ({"model_type": "jamba"}, "jamba needs recurrent state"),
    "hybrid": (
        {"layer_types": ["linear_attention", "full_attention"]},
        r"layer type linear_attention\) needs recurrent state",
    ),
    "encoder": ({"model_type": "t5", "is_encoder_decoder": True}, "t5 is an encoder-decoder"),
    "unknown family": ({"model_type": "no_such_family"}, "no_such_family"),
    "dynamic rope": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "rotary scaling 'dynamic' of llama",
    ),
    "activation": ({"hidden_act": "relu"}, "activation 'relu'"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_the_engine_lacks_is_refused_by_name(case: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    values, message = UNSUPPORTED[case]
    edit_config(tmp_path, **values)
    with pytest.raises(UnsupportedError, match=message):
        load(tmp_path)


def test_weights_stored_in_8_bits_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path)

    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    edit_tensors(tmp_path, quantise)
    with pytest.raises(UnsupportedError, match="stored as F8_E4M3"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("", EngineInputError, "path is empty"),
        ("./nowhere/at/all", EngineInputError, "does not exist"),
        ("someone/some-model", EngineEnvironmentError, "hub cannot be reached"),
    ],
)
def test_paths_that_lead_nowhere(path: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_target(TargetRef(path=path))


def test_an_empty_folder_and_a_plain_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineInputError, match="is an empty folder"):
        load(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(EngineInputError, match=r"only \.gguf files"):
        load(file)
    (tmp_path / "x.gguf").write_bytes(b"GGML")
    with pytest.raises(EngineInputError, match="is not a GGUF file"):
        load(tmp_path / "x.gguf")
    (tmp_path / "y.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(EngineInputError, match="is damaged or cut off"):
        load(tmp_path / "y.gguf")


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("cuda:99", EngineEnvironmentError, "cuda:99 is not there"),
        ("cuda:0,1", UnsupportedError, "tensor parallel"),
        ("tpu", UnsupportedError, "'tpu'"),
    ],
)
def test_devices(device: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with pytest.raises(error, match=message):
        load(tmp_path, device=device)


def test_more_weights_than_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    with pytest.raises(CapacityError, match="need 0.0 GB on cpu"):
        load(tmp_path)
