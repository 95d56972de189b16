"""Incumbents: configurations of ours and of engines, as far as they can be expressed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftsmith.store.bundle import BundleParts, write_bundle
from draftsmith.store.errors import StoreInputError
from draftsmith.tuner.errors import TunerInputError
from draftsmith.tuner.incumbent import Incumbent, read_incumbent


def read(folder: Path, content: object) -> Incumbent:
    file = folder / "incumbent.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_incumbent(file)


def test_a_configuration_of_ours(tmp_path: Path) -> None:
    made = read(tmp_path, {"drafter": "suffix", "block_size": 12, "match_max": 16})
    assert made.config.drafter == "suffix" and made.config.block_size == 12
    assert made.notes == ()


def test_a_bundle_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    parts = BundleParts(
        deployment={"a": 1}, config={"drafter": "ngram", "block_size": 6}, evidence={"b": 2}
    )
    write_bundle(folder, parts)
    assert read_incumbent(folder).config.block_size == 6
    (folder / "config.json").write_text('{"drafter": "ngram", "block_size": 7}')
    with pytest.raises(StoreInputError):
        read_incumbent(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"method": "ngram", "num_speculative_tokens": ' + "9" * 5000 + "}", "of 5000 digits"),
        ('{"method": "ngram", "num_speculative_tokens": ' + "9" * 300 + "}", "of about 301 digits"),
        ('{"drafter": "ngram", "block_size": 2, "block_size": 3}', "'block_size' stands there twi"),
        ('{"drafter": "ngram", "exit_layer": 3}', "does not read it, only early_exit"),
    ],
    ids=["unreadable", "large", "twice", "unread"],
)
def test_values_that_cannot_be_meant(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(TunerInputError) as caught:
        read(tmp_path, content)
    assert message in str(caught.value) and "set_int_max_str_digits" not in str(caught.value)


def test_speculation_may_be_off_today(tmp_path: Path) -> None:
    assert read(tmp_path, {"drafter": "off"}).config.drafter == "none"


def test_vllm_ngram_with_its_real_defaults(tmp_path: Path) -> None:
    """Both lengths unset mean 5 and 5; one unset copies the other."""
    made = read(tmp_path, {"method": "ngram", "num_speculative_tokens": 5})
    assert (made.config.match_min, made.config.match_max) == (5, 5)
    made = read(tmp_path, {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3})
    assert (made.config.match_min, made.config.match_max) == (3, 3)
    made = read(tmp_path, {"model": "ngram", "num-speculative-tokens": 5, "prompt-lookup-min": 2})
    assert (made.config.match_min, made.config.match_max) == (2, 2)


def test_vllm_suffix_and_what_is_not_equal(tmp_path: Path) -> None:
    made = read(tmp_path, {"method": "suffix"})
    assert made.config.drafter == "suffix"
    assert (made.config.block_size, made.config.match_max) == (24, 24)
    assert made.config.min_token_prob == 0.1
    assert any("max_cached_requests" in note for note in made.notes)


def test_b11_vllm_draft_model_is_not_guessed_from_its_path(tmp_path: Path) -> None:
    """cases.md B11: a path that contains eagle keeps its method."""
    made = read(
        tmp_path,
        {"method": "draft_model", "model": "/models/eagle-small", "num_speculative_tokens": 3},
    )
    assert made.config.drafter == "draft_model"
    assert made.config.draft_model == "/models/eagle-small"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"method": "eagle3", "model": "x", "num_speculative_tokens": 3}, "method 'eagle3'"),
        ({"method": "medusa"}, "not expressible"),
        ({"method": "ngram"}, "num_speculative_tokens is missing"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "at least 1"),
        ({"method": "ngram", "num_speculative_tokens": 17}, "from 1 to 16"),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_max": 2,
                "prompt_lookup_min": 4,
            },
            "prompt_lookup_min 4",
        ),
        ({"method": "ngram", "num_speculative_tokens": 3, "ngram_prompt_lookup_max": 3}, "unknown"),
        ({"speculative_model": "ngram", "num_speculative_tokens": 3}, "speculative_algorithm None"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "needs model"),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "suffix_decoding_max_tree_depth": 9},
            "does not belong",
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "parallel_drafting": True},
            "parallel drafting",
        ),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "rejection_sample_method": "fly",
            },
            "not lossless",
        ),
        (
            {"method": "ngram", "num_speculative_tokens": 3, "tensor_parallel_size": 2},
            "draft_tensor_parallel_size",
        ),
        ({"drafter": "ngram", "blok": 1}, "unknown knob"),
        ({"speculative_algorithm": "EAGLE3"}, "only NGRAM"),
        ({"something": 1}, "neither"),
        ("[1]", "holds a list"),
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ({"method": ["ngram"], "num_speculative_tokens": 4}, "['ngram'] is not expressible"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(TunerInputError) as caught:
        read(tmp_path, content)
    assert message in str(caught.value)


def test_sglang_ngram_flags_become_a_tree_with_a_note(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        {"--speculative-algorithm": "NGRAM", "--speculative-num-draft-tokens": 12},
    )
    assert made.config.drafter == "suffix" and made.config.tree == "dynamic"
    assert made.config.tree_budget == 11
    assert made.notes


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TunerInputError, match="cannot be read"):
        read_incumbent(tmp_path / "none.json")
