"""The space as data: complete, validated, normalised, walked both ways."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import pytest

from draftsmith.engine.drafters.registry import DRAFTER_NAMES
from draftsmith.engine.drafters.shapes import make_template
from draftsmith.engine.types import SpecConfig
from draftsmith.store.canonical import fingerprint
from draftsmith.tuner.agents.rules import starting_points
from draftsmith.tuner.errors import TunerInputError
from draftsmith.tuner.knobs import DRAFTERS, KNOBS, SEARCHED, SpaceFacts
from draftsmith.tuner.parameters import (
    NotExpressibleError,
    draft_vocab_grid,
    parameters_of,
    suggest,
)
from draftsmith.tuner.space import (
    config_json,
    config_text,
    knob_table,
    normalise,
    simplicity,
    validate,
)

FACTS = SpaceFacts(
    num_layers=12, vocab_size=49152, families=SEARCHED, num_ranked=5000, draft_model="small"
)


class Dice:
    """A trial that answers at random within what it is offered."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return self._rng.randint(low, high)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        assert step is not None
        return low + step * self._rng.randint(0, round((high - low) / step))

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any:
        return self._rng.choice(list(choices))


def test_every_field_of_a_configuration_is_a_knob() -> None:
    assert set(KNOBS) == {field.name for field in fields(SpecConfig)}
    assert set(DRAFTERS) == set(DRAFTER_NAMES)


@pytest.mark.parametrize("family", SEARCHED)
def test_everything_suggested_is_valid_and_leads_back(family: str) -> None:
    for seed in range(200):
        config = suggest(Dice(seed), family, FACTS)
        assert config.drafter == family
        assert validate(config_json(config), FACTS) == config
        parameters = parameters_of(config, FACTS)
        assert parameters and all(name.startswith(f"{family}.") for name in parameters)
        if config.tree == "static":
            assert len(make_template(config, ())) <= config.tree_budget


def test_starting_points_can_be_enqueued_and_cover_every_family_first() -> None:
    for concurrency in (1, 8):
        for temperature in (0.0, 0.8):
            facts = SpaceFacts(
                num_layers=30,
                vocab_size=8192,
                families=SEARCHED,
                num_ranked=900,
                draft_model="small",
                concurrency=concurrency,
                temperature=temperature,
            )
            points = starting_points(facts)
            assert {p.config.drafter for p in points[: len(SEARCHED)]} == set(SEARCHED)
            assert len({p.config for p in points}) == len(points)
            assert all(p.why for p in points)
            for point in points:
                assert parameters_of(point.config, facts)


def test_what_is_not_searched_is_said_to_be() -> None:
    with pytest.raises(NotExpressibleError):
        parameters_of(SpecConfig(drafter="ngram", match_max=40), FACTS)
    with pytest.raises(NotExpressibleError):
        parameters_of(SpecConfig(drafter="early_exit", exit_layer=3, draft_vocab=1500), FACTS)


def test_families_depend_on_the_model() -> None:
    assert (
        "early_exit"
        not in SpaceFacts(
            num_layers=12, vocab_size=100, families=SEARCHED, layer_subsets=False
        ).searched
    )
    assert (
        "draft_model" not in SpaceFacts(num_layers=12, vocab_size=100, families=SEARCHED).searched
    )


@pytest.mark.parametrize(
    ("vocab", "ranked", "sizes"),
    [
        (49152, 5000, (1024, 2048, 4096, None)),
        (8192, 8192, (128, 256, 512, 1024, 2048, 4096, None)),
        (8192, 0, (None,)),
        (64, 64, (8, 16, 32, None)),
    ],
)
def test_draft_vocabularies_double_up_to_what_is_ranked(
    vocab: int, ranked: int, sizes: tuple[int | None, ...]
) -> None:
    facts = SpaceFacts(num_layers=2, vocab_size=vocab, families=SEARCHED, num_ranked=ranked)
    assert draft_vocab_grid(facts) == sizes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"blok_size": 3}, "unknown knob 'blok_size'. Did you mean 'block_size'?"),
        ({"drafter": "ngrm"}, "Did you mean 'ngram'?"),
        ({"drafter": "ngram", "block_size": 17}, "from 1 to 16"),
        ({"drafter": "ngram", "block_size": 0}, "block_size is 0"),
        ({"drafter": "ngram", "block_size": "4"}, "whole number"),
        ({"drafter": "ngram", "block_size": True}, "whole number"),
        ({"drafter": "ngram", "match_min": 5, "match_max": 3}, "match_min 5"),
        ({"drafter": "suffix", "match_min": 4, "match_max": 4}, "no room"),
        ({"drafter": "suffix", "min_token_prob": 1.5}, "from 0 to 1"),
        ({"drafter": "suffix", "min_token_prob": float("nan")}, "number"),
        ({"drafter": "ngram", "tree": "static"}, "draws chain only"),
        ({"drafter": "recycle", "tree": "dynamic"}, "chain or static"),
        ({"drafter": "early_exit"}, "needs exit_layer or skip_layers"),
        ({"drafter": "early_exit", "exit_layer": 12}, "from 1 to 11"),
        ({"drafter": "early_exit", "exit_layer": 2, "draft_vocab": 4.0}, "draft_vocab is 4.0"),
        ({"drafter": "early_exit", "exit_layer": 2, "draft_vocab": 0}, "from 1 to 49152"),
        ({"drafter": "early_exit", "exit_layer": 2, "draft_vocab": 49153}, "from 1 to 49152"),
        ({"drafter": "early_exit", "skip_layers": [2, 2]}, "twice"),
        ({"drafter": "draft_model"}, "needs draft_model"),
        ({"block_size": 4}, "block_size is given without a drafter: name one of none, ngram"),
        ({"drafter": "none", "block_size": 8}, "drafter 'none' does not read it, only ngram"),
        ({"drafter": "ngram", "exit_layer": 2}, "does not read it, only early_exit: drop it"),
        ({"drafter": "ngram", "tree_budget": 9}, "does not read it, only suffix, recycle, early"),
        ({"drafter": "suffix", "tree_budget": 9}, "tree 'chain' does not read it, only static or"),
        ({"drafter": "early_exit", "skip_layers": [2], "exit_layer": 3}, "skip_layers is set"),
        ({"drafter": "scripted"}, "drafter is 'scripted'. Known: draft_model, early_exit, ngram"),
        ({"drafter": "ngram", "accept_p": 0.5}, "unknown knob 'accept_p'"),
        ({"drafter": "ngram", "block_size": 10**400}, "a whole number of about 401 digits"),
        ({"drafter": "suffix", "spec_factor": 10**400}, "a whole number of about 401 digits"),
        ({"drafter": ["ngram"]}, "drafter is ['ngram']"),
        (
            {"drafter": "recycle", "tree": "static", "verifier": "block"},
            "needs a chain",
        ),
    ],
)
def test_wrong_knobs_are_named_with_limits(config: dict[str, object], message: str) -> None:
    with pytest.raises(TunerInputError) as caught:
        validate(config, FACTS)
    assert message in str(caught.value)


def test_knobs_that_are_not_read_do_not_make_configurations_differ() -> None:
    plain = SpecConfig(drafter="ngram", block_size=5)
    noisy = SpecConfig(
        drafter="ngram", block_size=5, tree_budget=99, exit_layer=3, recycle_k=2, draft_vocab=77
    )
    assert normalise(plain) == normalise(noisy)
    assert normalise(SpecConfig(block_size=9, recycle_k=1)) == SpecConfig()


def test_off_is_what_the_tables_call_none() -> None:
    assert validate({"drafter": "off"}) == validate({"drafter": "none"}) == SpecConfig()


def test_a_default_that_nothing_reads_is_let_pass() -> None:
    """What exports of every knob hold."""
    whole = {"drafter": "ngram", "tree": "chain", "tree_budget": 16, "exit_layer": None}
    assert validate({**whole, "skip_layers": []}) == SpecConfig(drafter="ngram")


def test_b31_equal_values_written_differently_are_one_configuration() -> None:
    """cases.md B31: 0.1 + 0.2 and 0.3 are measured once."""
    first = validate({"drafter": "suffix", "match_max": 8, "min_token_prob": 0.1 + 0.2})
    second = validate({"drafter": "suffix", "match_max": 8, "min_token_prob": 0.3})
    assert fingerprint(config_json(first)) == fingerprint(config_json(second))


def test_a_whole_draft_vocabulary_is_no_trim() -> None:
    config = SpecConfig(drafter="early_exit", exit_layer=3, draft_vocab=49152)
    assert normalise(config, FACTS).draft_vocab is None


def test_simplicity_orders_off_chain_static_dynamic() -> None:
    chain = SpecConfig(drafter="early_exit", exit_layer=3)
    static = SpecConfig(drafter="early_exit", exit_layer=3, tree="static")
    dynamic = SpecConfig(drafter="early_exit", exit_layer=3, tree="dynamic")
    ordered = sorted([dynamic, static, chain, SpecConfig()], key=simplicity)
    assert ordered == [SpecConfig(), chain, static, dynamic]
    backed = SpecConfig(drafter="ngram", fallback_size=2)
    assert sorted([backed, SpecConfig(drafter="ngram")], key=simplicity)[1] == backed


def test_the_table_names_every_knob_with_its_range() -> None:
    rows = {row["name"]: row for row in knob_table(FACTS)}
    assert set(rows) == set(KNOBS) - {"accept_p", "script", "script_right"}
    assert not any("scripted" in text for row in rows.values() for text in row.values())
    assert rows["exit_layer"]["values"] == "1..11"
    assert rows["block_size"]["values"] == "1..16 (64 for suffix)"
    assert {row["name"]: row for row in knob_table()}["exit_layer"]["values"] == "1..layers - 1"
    assert config_text(SpecConfig()) == "off"
