"""Tiny random models for tests: as transformers models, as our decoders, and saved as folders.

Weights are drawn wide enough (standard deviation 0.3) for logits that differ clearly from token to
token, and depend on nothing but the arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from draftsmith.engine.model.config import parse_config
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.model.weights import assemble

CONFIGS: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "smollm3": SmolLM3Config,
    "gemma": GemmaConfig,
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
}
# What makes a family itself, at a size where it shows: windows shorter than a test's prompt.
DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 5},
    "gemma2": {"sliding_window": 5, "query_pre_attn_scalar": 20},
    "gemma3_text": {
        "sliding_window": 5,
        "query_pre_attn_scalar": 20,
        "sliding_window_pattern": 2,
    },
}
EOS, BOS = 1, 0


def tiny_config(
    family: str = "llama",
    *,
    num_layers: int = 2,
    vocab_size: int = 64,
    hidden: int = 32,
    **overrides: Any,
) -> PretrainedConfig:
    """A configuration of ``family`` with 4 heads over 2 key/value heads of 16 dimensions."""
    values: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
    }
    if family in ("llama", "mistral", "qwen3", "gemma", "gemma2", "gemma3_text"):
        values["head_dim"] = 16
    values.update(DEFAULTS.get(family, {}))
    values.update(overrides)
    return CONFIGS[family](**values)


def random_reference(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """The transformers model of ``config`` in fp32 with seeded weights, eager attention."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            centre = 1.0 if "norm" in name else 0.0
            parameter.copy_(centre + (0.1 if centre else 0.3) * noise)
    model.tie_weights()
    return model


def decoder_of(model: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Decoder:
    """Our decoder over a copy of a transformers model's weights, without a file between."""
    config = parse_config(model.config)
    weights = assemble(
        config, model.state_dict().__getitem__, dtype=dtype, device=torch.device("cpu")
    )
    return Decoder(config, weights, name="tiny", fingerprint="tiny")


def tiny_decoder(
    seed: int = 0,
    num_layers: int = 2,
    vocab_size: int = 64,
    hidden: int = 32,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Decoder:
    """A random ``Decoder`` in memory. ``overrides`` are fields of the family's transformers
    configuration.
    """
    config = tiny_config(
        family, num_layers=num_layers, vocab_size=vocab_size, hidden=hidden, **overrides
    )
    return decoder_of(random_reference(config, seed), dtype)


def tiny_tokenizer(vocab_size: int = 64) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer without merges: ids 0 and 1 are ``<s>`` and ``</s>``, then as many
    printable bytes as fit. Text made of lower-case ASCII, digits and blanks round-trips from 64 ids
    on.
    """
    first = "abcdefghijklmnopqrstuvwxyz ,.0123456789\n?!'-:()ABCDEFGHIJ"
    ordered = [_byte_symbol(ord(char)) for char in first]
    ordered += [s for s in sorted(pre_tokenizers.ByteLevel.alphabet()) if s not in ordered]
    tokens = ["<s>", "</s>", "<unk>", *ordered][:vocab_size]
    tokens += [f"<filler{index}>" for index in range(vocab_size - len(tokens))]
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split("", "isolated"),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    return tokenizer


def save_tiny(
    folder: Path,
    *,
    seed: int = 0,
    num_layers: int = 2,
    vocab_size: int = 64,
    hidden: int = 32,
    family: str = "llama",
    shard_size: str | None = None,
    **overrides: Any,
) -> Path:
    """Write the model of ``tiny_decoder(seed, ...)`` with a working tokenizer as a checkpoint
    folder.
    """
    config = tiny_config(
        family, num_layers=num_layers, vocab_size=vocab_size, hidden=hidden, **overrides
    )
    model = random_reference(config, seed)
    model.save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
    tiny_tokenizer(vocab_size).save_pretrained(folder)
    return folder


def _byte_symbol(byte: int) -> str:
    """The printable stand-in that byte-level tokenizers use for ``byte``."""
    (piece,) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(
        chr(byte)
    )
    return str(piece[0])
