"""A GGUF file written here loads as the model that it was written from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from rows import plain_logits
from tinymodels import decoder_of, random_reference, tiny_config, tiny_tokenizer
from transformers import PreTrainedModel

from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.loading import load_target

IDS = [5, 9, 31, 12, 44, 8, 27]
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleaved(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The row order in which llama.cpp stores q and k of a Llama model."""
    rows = weight.reshape(num_heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))


def write_gguf(
    path: Path, model: PreTrainedModel, extra: Callable[[GGUFWriter], None] | None = None
) -> Path:
    config = model.config
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    tokens = tiny_tokenizer(config.vocab_size).convert_ids_to_tokens(range(config.vocab_size))
    tokens[-1] = "ab"  # the one merge there is
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    if extra is not None:
        extra(writer)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        plain = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
        if parts[0] == "layers":
            short = NAMES[parts[2]]
            stored, array = f"blk.{parts[1]}.{short}", tensor.numpy()
            if short in heads:
                array = interleaved(array, heads[short])
        else:
            stored, array = plain[parts[0]], tensor.numpy()
        writer.add_tensor(f"{stored}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_logits_equal_the_model_that_was_written(tmp_path: Path) -> None:
    reference = random_reference(tiny_config(), 4)
    path = write_gguf(tmp_path / "tiny.gguf", reference)
    target = load_target(TargetRef(path=str(path), dtype="float32"))
    expected = plain_logits(decoder_of(reference), IDS)
    torch.testing.assert_close(plain_logits(target.model, IDS), expected, atol=1e-5, rtol=0)
    assert target.model.info.name == "tiny"
    assert target.model.info.eos_token_ids == (1,)
    assert target.tokenizer.decode(target.tokenizer("hello")["input_ids"]) == "hello"


def test_a_file_cut_off_in_its_weights_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", random_reference(tiny_config()))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(EngineInputError, match="copy it again"):
        load_target(TargetRef(path=str(path)))


def test_more_layers_than_the_file_says_are_refused_not_dropped(tmp_path: Path) -> None:
    reference = random_reference(tiny_config(num_layers=2))
    reference.config.num_hidden_layers = 1
    path = write_gguf(tmp_path / "tiny.gguf", reference)
    with pytest.raises(EngineInputError, match=r"layers up to blk\.1, its block_count is 1"):
        load_target(TargetRef(path=str(path)))


def test_scaled_rotary_positions_are_refused_not_dropped(tmp_path: Path) -> None:
    def scaled(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", "yarn")

    path = write_gguf(tmp_path / "tiny.gguf", random_reference(tiny_config()), scaled)
    with pytest.raises(UnsupportedError, match="scaled rotary positions"):
        load_target(TargetRef(path=str(path)))

    def factors(writer: GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(8, dtype=np.float32))

    path = write_gguf(tmp_path / "other.gguf", random_reference(tiny_config()), factors)
    with pytest.raises(UnsupportedError, match="scaled rotary positions"):
        load_target(TargetRef(path=str(path)))
