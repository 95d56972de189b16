"""``--incumbent FILE``: what the user runs today, as far as we can express it.

A bundle folder of ours, a configuration of ours as JSON, vLLM's ``--speculative-config`` JSON
(ngram, suffix, draft_model) or SGLang's NGRAM flags as JSON. Settings that change nothing about
which tokens are proposed are noted; those that we cannot express are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.engine.types import SpecConfig
from draftsmith.store.bundle import read_bundle
from draftsmith.tuner.errors import TunerInputError, near_match
from draftsmith.tuner.knobs import KNOBS, SpaceFacts
from draftsmith.tuner.space import validate
from draftsmith.tuner.strict_json import read_json, shown

_VLLM_SERVING = {  # accepted, and no part of what is proposed
    "draft_tensor_parallel_size",
    "max_model_len",
    "enforce_eager",
    "attention_backend",
    "moe_backend",
    "revision",
    "code_revision",
    "disable_padded_drafter_batch",
    "disable_lookahead_block_hashes",
    "disable_eagle_block_drop",
    "use_local_argmax_reduction",
}
_VLLM_REFUSED = {
    "quantization": "a quantised draft model",
    "parallel_drafting": "parallel drafting",
    "num_speculative_tokens_per_batch_size": "a block size that follows the batch",
    "enable_adaptive_verification": "adaptive verification",
    "use_heterogeneous_vocab": "a draft model with another vocabulary",
    "synthetic_acceptance_rates": "synthetic acceptance",
    "synthetic_acceptance_length": "synthetic acceptance",
    "draft_lm_head_quantization": "a quantised draft head",
    "kv_cache_dtype": "a draft cache of another type",
}
_VLLM_OWN = {
    "ngram": {"prompt_lookup_max", "prompt_lookup_min"},
    "suffix": {
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
    },
    "draft_model": set(),
}
_VLLM_COMMON = {
    "method",
    "model",
    "num_speculative_tokens",
    "rejection_sample_method",
    "draft_sample_method",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Incumbent:
    """``notes`` say what is not equal to what the user runs."""

    name: str
    config: SpecConfig
    notes: tuple[str, ...] = ()


def read_incumbent(path: Path, facts: SpaceFacts | None = None) -> Incumbent:
    """The incumbent of a bundle folder or a JSON file. TunerInputError names what is unreadable,
    unknown or not expressible.
    """
    if path.is_dir():
        parts = read_bundle(path).parts
        return Incumbent(name=f"bundle {path.name}", config=_ours(parts.config, facts))
    content = _read_json(path)
    if "drafter" in content:
        return Incumbent(name=path.name, config=_ours(content, facts))
    if any(str(key).startswith("speculative_") for key in _dashed(content)):
        return _sglang(path.name, _dashed(content), facts)
    return _vllm(path.name, _dashed(content), facts)


def _ours(content: Mapping[str, Any], facts: SpaceFacts | None) -> SpecConfig:
    inner = content.get("config", content)
    if not isinstance(inner, Mapping):
        raise TunerInputError(f"incumbent's config is {inner!r}: it must map knobs to values")
    return validate(inner, facts)


def _vllm(name: str, content: dict[str, Any], facts: SpaceFacts | None) -> Incumbent:
    method = _vllm_method(content)
    known = _VLLM_COMMON | _VLLM_SERVING | set(_VLLM_REFUSED) | _VLLM_OWN[method]
    notes: list[str] = []
    for key, value in content.items():
        if key == "tensor_parallel_size":
            raise TunerInputError(
                "tensor_parallel_size is refused by vLLM: write draft_tensor_parallel_size"
            )
        if key not in known:
            others = set().union(*_VLLM_OWN.values())
            if key in others:
                raise TunerInputError(f"{key} does not belong to vLLM method {method!r}: drop it")
            raise TunerInputError(f"unknown vLLM key {key!r}.{near_match(key, known)}")
        if key in _VLLM_REFUSED and value not in (None, False):
            raise TunerInputError(
                f"{key} {value!r} asks for {_VLLM_REFUSED[key]}, which draftsmith cannot express"
            )
        if key in _VLLM_SERVING and value is not None:
            notes.append(f"{key} {value!r} is ignored: it does not change what is proposed")
    values = _VLLM_BUILDERS[method](content, notes)
    values["verifier"] = _vllm_verifier(content, facts, notes)
    return Incumbent(
        name=f"vLLM {method} ({name})", config=validate(values, facts), notes=tuple(notes)
    )


def _vllm_method(content: Mapping[str, Any]) -> str:
    """``method``, or what vLLM takes when it is left out; others are refused by name."""
    if "speculative_model" in content:
        raise TunerInputError("speculative_model is a retired vLLM key: write model")
    method = content.get("method")
    if method is None:
        model = content.get("model")
        if model is None:
            raise TunerInputError(
                "the file is neither a configuration of ours (key 'drafter') nor vLLM's "
                "(keys 'method' or 'model'), nor SGLang's (keys 'speculative_...')"
            )
        method = "ngram" if model == "ngram" else "draft_model"
    if not isinstance(method, str) or method not in _VLLM_OWN:
        raise TunerInputError(
            f"vLLM method {method!r} is not expressible in draftsmith: "
            f"it can stand for {', '.join(sorted(_VLLM_OWN))}"
        )
    return str(method)


def _vllm_ngram(content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    del notes
    most, least = content.get("prompt_lookup_max"), content.get("prompt_lookup_min")
    if most is None and least is None:
        most = least = 5
    most, least = most if most is not None else least, least if least is not None else most
    most, least = _whole("prompt_lookup_max", most), _whole("prompt_lookup_min", least)
    if least > most:
        raise TunerInputError(
            f"prompt_lookup_min {least} is more than prompt_lookup_max {most}: vLLM refuses it too"
        )
    return {
        "drafter": "ngram",
        "block_size": _tokens(content),
        "match_min": least,
        "match_max": most,
    }


def _vllm_suffix(content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    depth = _whole(
        "suffix_decoding_max_tree_depth", content.get("suffix_decoding_max_tree_depth", 24)
    )
    cached = content.get("suffix_decoding_max_cached_requests", 10000)
    if cached != 0:
        notes.append(
            f"suffix_decoding_max_cached_requests {cached}: vLLM shares a store between requests, "
            "here every request starts afresh, so that trials stay comparable"
        )
    tokens = content.get("num_speculative_tokens")
    block = depth if tokens is None else _tokens(content)
    most = int(KNOBS["block_size"].high_for["suffix"]) if KNOBS["block_size"].high_for else block
    if block > most:
        notes.append(f"num_speculative_tokens {block} is taken as {most}, the most that is drafted")
    return {
        "drafter": "suffix",
        "block_size": min(block, most),
        "match_max": depth,
        "spec_factor": content.get("suffix_decoding_max_spec_factor", 1.0),
        "min_token_prob": content.get("suffix_decoding_min_token_prob", 0.1),
    }


def _vllm_draft_model(content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    del notes
    model = content.get("model")
    if not isinstance(model, str) or not model:
        raise TunerInputError("vLLM method 'draft_model' needs model: the drafter's folder")
    return {"drafter": "draft_model", "draft_model": model, "block_size": _tokens(content)}


_VLLM_BUILDERS = {"ngram": _vllm_ngram, "suffix": _vllm_suffix, "draft_model": _vllm_draft_model}


def _vllm_verifier(content: Mapping[str, Any], facts: SpaceFacts | None, notes: list[str]) -> str:
    rule = content.get("rejection_sample_method", "standard")
    if rule not in ("standard", "block"):
        raise TunerInputError(
            f"rejection_sample_method {rule!r} is not lossless, or synthetic: draftsmith refuses it"
        )
    if facts is None or facts.temperature > 0:
        notes.append(
            f"rejection_sample_method {rule!r} is measured as coupled noise: the same law, and "
            "token-exact against stock"
        )
    return "coupled"


def _sglang(name: str, content: dict[str, Any], facts: SpaceFacts | None) -> Incumbent:
    """SGLang's NGRAM flags. Its trie is a tree over recent text, nearest to our dynamic suffix
    tree.
    """
    algorithm = content.get("speculative_algorithm")
    if algorithm != "NGRAM":
        raise TunerInputError(
            f"speculative_algorithm {algorithm!r} is not expressible in draftsmith: only NGRAM is"
        )
    known = {
        "speculative_algorithm",
        "speculative_num_draft_tokens",
        "speculative_ngram_min_bfs_breadth",
        "speculative_ngram_max_bfs_breadth",
        "speculative_ngram_match_type",
        "speculative_ngram_max_trie_depth",
        "speculative_ngram_capacity",
    }
    for key in content:
        if key not in known:
            raise TunerInputError(
                f"SGLang key {key!r} is not expressible here.{near_match(key, known)}"
            )
    tokens = _whole("speculative_num_draft_tokens", content.get("speculative_num_draft_tokens", 12))
    depth = _whole(
        "speculative_ngram_max_trie_depth", content.get("speculative_ngram_max_trie_depth", 18)
    )
    breadth = _whole(
        "speculative_ngram_max_bfs_breadth", content.get("speculative_ngram_max_bfs_breadth", 10)
    )
    values = {
        "drafter": "suffix",
        "tree": "dynamic",
        "block_size": min(depth, max(1, tokens - 1)),
        "tree_budget": max(2, tokens - 1),
        "tree_top_k": min(breadth, int(KNOBS["tree_top_k"].high or breadth)),
        "match_max": depth,
        "min_token_prob": 0.0,
    }
    note = (
        "SGLang's n-gram trie is measured as a dynamic suffix tree of the same size and depth: the "
        "order in which it fills its tree, and its store shared between requests, are not the same"
    )
    return Incumbent(name=f"SGLang NGRAM ({name})", config=validate(values, facts), notes=(note,))


def _tokens(content: Mapping[str, Any]) -> int:
    if content.get("num_speculative_tokens") is None:
        raise TunerInputError("num_speculative_tokens is missing: vLLM needs it for this method")
    return _whole("num_speculative_tokens", content["num_speculative_tokens"])


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TunerInputError(f"{name} is {shown(value)}: it must be a whole number, at least 1")
    return value


def _dashed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as both engines read them: dashes are underscores, leading ones dropped."""
    return {str(key).lstrip("-").replace("-", "_"): value for key, value in content.items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise TunerInputError(
            f"incumbent {str(path)!r} cannot be read: {error.strerror}; give a bundle folder or a "
            "JSON file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise TunerInputError(f"incumbent {str(path)!r} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TunerInputError(
            f"incumbent {str(path)!r} holds a {type(content).__name__}: it must be a JSON object"
        )
    return content
