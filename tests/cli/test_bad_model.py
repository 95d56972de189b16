"""Checkpoints whose numbers are no model's: one message, exit 2, and no verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.cli.conftest import invoke


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def commands(target: Path, workload: Path) -> dict[str, tuple[object, ...]]:
    model = ("--target", target, "--dtype", "float32")
    return {
        "generate": ("generate", "hello", *model, "--max-tokens", 4),
        "bench": ("bench", "--workload", workload, *model, "--max-tokens", 4),
        "tune": (
            *("tune", "--in-process", "--workload", workload, *model, "--max-tokens", 8),
            *("--budget", "10m", "--max-trials", 1, "--store", "s.db", "--out", "out"),
        ),
    }


def scaled(tiny: Path, folder: Path, scale: float) -> Path:
    shutil.copytree(tiny, folder)
    file = folder / "model.safetensors"
    tensors = {name: tensor * scale for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def reconfigured(tiny: Path, folder: Path, **values: Any) -> Path:
    shutil.copytree(tiny, folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def refused(command: str, target: Path, workload: Path) -> str:
    result = invoke(*commands(target, workload)[command])
    assert result.exit_code == 2, result.stderr
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert not Path("out").exists()
    return result.stderr


@pytest.mark.parametrize("command", ["generate", "bench", "tune"])
@pytest.mark.parametrize("scale", [1e10, 1e30])
def test_weights_that_overflow(command: str, scale: float, tiny: Path, workload: Path) -> None:
    target = scaled(tiny, Path("spoilt"), scale)
    message = refused(command, target, workload)
    assert "overflows: use bfloat16 or float32, or check the checkpoint" in message


@pytest.mark.parametrize("command", ["generate", "bench", "tune"])
def test_a_token_that_turns_the_logits_into_nan(command: str, tiny: Path, workload: Path) -> None:
    """Loading finds other tokens well; the prompts hold this one. Gemma scales its embedding."""
    from tests.support.tinymodels import save_tiny, tiny_tokenizer

    target = save_tiny(Path("spoilt"), family="gemma", tie_word_embeddings=False)
    (spoilt,) = tiny_tokenizer()("e")["input_ids"]
    file = target / "model.safetensors"
    tensors = load_file(file)
    tensors["model.embed_tokens.weight"][spoilt, 0] = 3e38
    save_file(tensors, file, metadata={"format": "pt"})
    message = refused(command, target, workload)
    assert "logits of the target at output position 0 of request" in message
    assert "hold NaN; the checkpoint or its dtype overflows" in message


@pytest.mark.parametrize("command", ["generate", "bench", "tune"])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor of the rotary embedding"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta of the rotary embedding"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_hidden_layers": "x"}, "expected int, got str"),
        ({"num_hidden_layers": 1}, "num_hidden_layers 1"),
    ],
    ids=str,
)
def test_a_config_that_is_no_models(
    command: str, values: dict[str, Any], said: str, tiny: Path, workload: Path
) -> None:
    assert said in refused(command, reconfigured(tiny, Path("other"), **values), workload)


@pytest.mark.parametrize("command", ["generate", "bench", "tune"])
def test_a_config_nested_without_end(command: str, tiny: Path, workload: Path) -> None:
    target = reconfigured(tiny, Path("deep"))
    (target / "config.json").write_text("[" * 200_000)
    message = refused(command, target, workload)
    assert "config.json is not JSON" in message and "copy it again" in message
