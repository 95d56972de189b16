"""Knobs that a deployment holds at one value instead of having them searched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import optuna
import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.agents.rules import starting_points
from draftsmith.tuner.deployment_file import load_deployment
from draftsmith.tuner.errors import TunerInputError
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.parameters import expressible, suggest
from draftsmith.tuner.space import check_fixed, knob_table

FACTS = SpaceFacts(
    num_layers=8,
    vocab_size=8192,
    families=("ngram", "early_exit"),
    num_ranked=8192,
)
CHAINS = {"tree": "chain", "stop_threshold": 0.0, "skip_layers": ()}


def drawn(family: str, facts: SpaceFacts, count: int = 40) -> list[SpecConfig]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [suggest(study.ask(), family, facts) for _ in range(count)]


@pytest.mark.parametrize(
    "fixed",
    [
        CHAINS,
        {"tree": "static", "tree_budget": 12},
        {"block_size": 6, "draft_vocab": 3000},
        {"exit_layer": 5},
        {"skip_layers": (2, 3)},
    ],
)
def test_every_sample_holds_the_fixed_knobs_and_the_others_vary(fixed: dict[str, Any]) -> None:
    configs = drawn("early_exit", replace(FACTS, fixed=fixed))
    for config in configs:
        assert {name: getattr(config, name) for name in fixed} == fixed
    assert len(set(configs)) > 20


def test_starting_points_are_moved_to_the_fixed_values_or_left_out() -> None:
    points = starting_points(replace(FACTS, fixed={**CHAINS, "block_size": 2}))
    exits = [p.config for p in points if p.config.drafter == "early_exit"]
    assert [config.block_size for config in exits] == [2, 2]
    assert not any(config.skip_layers for config in exits)
    assert {p.config.block_size for p in points if p.config.drafter == "ngram"} == {2}


def test_another_value_is_outside_the_searched_space() -> None:
    facts = replace(FACTS, fixed=CHAINS)
    chain = SpecConfig(drafter="early_exit", exit_layer=2, block_size=4)
    assert expressible(chain, facts)
    assert not expressible(replace(chain, tree="static"), facts)
    assert not expressible(replace(chain, stop_threshold=0.2), facts)


def test_the_table_of_knobs_shows_what_is_fixed() -> None:
    rows = {row["name"]: row["values"] for row in knob_table(replace(FACTS, fixed=CHAINS))}
    assert rows["tree"] == "chain (fixed)"
    assert rows["block_size"] == "1..16 (64 for suffix)"


def test_the_deployment_file_takes_fixed_knobs() -> None:
    document = {"target": "t", "workload": "w", "fixed": {"tree": "chain", "block_size": 3}}
    assert load_deployment(document).fixed == {"tree": "chain", "block_size": 3}
    assert load_deployment(document, {"fixed.block_size": 5}).fixed["block_size"] == 5


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"match_max": 3}, "match_max"),
        ({"block_size": 40}, "from 1 to 16"),
        ({"exit_layer": 8}, "from 1 to 7"),
        ({"exit_layer": 3, "skip_layers": (2,)}, "exclude"),
        ({"draft_vocab": 0}, "draft_vocab"),
    ],
)
def test_bad_values_are_refused(fixed: dict[str, Any], words: str) -> None:
    with pytest.raises(TunerInputError, match=words):
        check_fixed(fixed, FACTS)


def test_a_tree_that_a_searched_family_does_not_draw_is_refused_with_its_name() -> None:
    facts = replace(FACTS, families=("recycle", "early_exit"))
    with pytest.raises(TunerInputError, match="recycle.*leave recycle out"):
        check_fixed({"tree": "dynamic"}, facts)


def test_a_knob_that_no_searched_family_reads_is_refused() -> None:
    facts = replace(FACTS, families=("ngram",))
    with pytest.raises(TunerInputError, match="none of the searched drafters"):
        check_fixed({"exit_layer": 3}, facts)
