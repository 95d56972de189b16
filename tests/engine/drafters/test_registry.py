"""Names, combinations and values that no drafter takes."""

from __future__ import annotations

import pytest

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.registry import DRAFTER_NAMES, draft_rows, make_drafter
from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.types import SpecConfig
from tests.support.fakes import FakeTarget


def context(**facts: object) -> DrafterContext:
    target = FakeTarget(**facts)  # type: ignore[arg-type]
    return DrafterContext(target=target, cache=target.new_cache(num_slots=1, capacity=8))


def refused(match: str, kind: type[EngineInputError] = EngineInputError, **fields: object) -> None:
    with pytest.raises(kind, match=match):
        make_drafter(SpecConfig(**fields), context())  # type: ignore[arg-type]


def test_none_is_no_drafter() -> None:
    assert make_drafter(SpecConfig(), context()) is None


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(EngineInputError) as caught:
        make_drafter(SpecConfig(drafter="eagle9"), context())
    assert "'eagle9'" in str(caught.value)
    assert all(name in str(caught.value) for name in DRAFTER_NAMES)
    refused("verifier 'typical' is unknown; use coupled", verifier="typical")


@pytest.mark.parametrize("verifier", ["rejection", "block"])
@pytest.mark.parametrize("drafter", ["early_exit", "recycle", "suffix"])
def test_chain_verifiers_refuse_trees(verifier: str, drafter: str) -> None:
    tree = "dynamic" if drafter == "suffix" else "static"
    refused(
        f"verifier {verifier} needs a chain, the tree is {tree}",
        UnsupportedError,
        drafter=drafter,
        verifier=verifier,
        tree=tree,
        exit_layer=1,
        match_max=16,
    )


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_chain_verifiers_take_point_mass_chains(verifier: str) -> None:
    config = SpecConfig(drafter="ngram", verifier=verifier)  # type: ignore[arg-type]
    assert make_drafter(config, context()) is not None


def test_exit_layers_are_checked_against_the_target() -> None:
    for layer in (0, 4, -1, 2.0):
        refused(f"exit_layer is {layer}; .* from 1 to 3", drafter="early_exit", exit_layer=layer)
    refused(r"needs exit_layer \(1\.\.3\) or skip_layers", drafter="early_exit")
    refused("exclude each other", drafter="early_exit", exit_layer=1, skip_layers=(2,))
    refused("skip_layers is 4; .* from 0 to 3", drafter="early_exit", skip_layers=(4,))
    refused("leave at least one", drafter="early_exit", skip_layers=(0, 1, 2, 3))
    refused("once each", drafter="early_exit", skip_layers=(1, 1))


def test_targets_without_layer_subsets_are_named() -> None:
    with pytest.raises(UnsupportedError, match="odd .* cannot run some of its layers"):
        make_drafter(
            SpecConfig(drafter="early_exit", exit_layer=1),
            context(name="odd", supports_layer_subsets=False),
        )
    with pytest.raises(EngineInputError, match="has one layer"):
        make_drafter(SpecConfig(drafter="early_exit", exit_layer=1), context(num_layers=1))


def test_draft_models_must_exist_and_share_the_vocabulary() -> None:
    refused("needs a loaded model", drafter="draft_model")
    target, draft = FakeTarget(vocab_size=64), FakeTarget(vocab_size=60, name="small")
    cache = target.new_cache(num_slots=1, capacity=8)
    with pytest.raises(UnsupportedError, match="small has a vocabulary of 60 .* fake of 64"):
        make_drafter(
            SpecConfig(drafter="draft_model"),
            DrafterContext(target=target, cache=cache, draft_model=draft),
        )


def test_values_of_shapes_and_stop_rule_are_checked() -> None:
    exit_two = {"drafter": "early_exit", "exit_layer": 2}
    refused("block_size is 0; .* from 1 to 64", **exit_two, block_size=0)
    refused("block_size is 65", **exit_two, block_size=65)
    refused("tree_budget is 0; .* from 1 to 1024", **exit_two, tree="static", tree_budget=0)
    refused("tree_top_k is 0", **exit_two, tree="dynamic", tree_top_k=0)
    refused("tree_top_k 65 is above the 64 ids", **exit_two, tree="dynamic", tree_top_k=65)
    refused("stop_threshold is -0.1", **exit_two, stop_threshold=-0.1)
    refused("does not draw star trees", UnsupportedError, **exit_two, tree="star")
    refused("branching", **exit_two, tree="static", branching=(2, 0))
    for size in (0, -1, 4.0, 65):
        refused(f"draft_vocab is {size}; .* from 1 to 64", **exit_two, draft_vocab=size)


def test_draft_rows_bound_what_drafting_writes() -> None:
    exit_two = {"drafter": "early_exit", "exit_layer": 2}
    assert draft_rows(SpecConfig(drafter="ngram")) == 0
    assert draft_rows(SpecConfig(**exit_two, block_size=5)) == 5  # type: ignore[arg-type]
    static = SpecConfig(**exit_two, tree="static", branching=(3, 2, 1))  # type: ignore[arg-type]
    assert draft_rows(static) == 1 + 3 + 6
    dynamic = SpecConfig(
        **exit_two,  # type: ignore[arg-type]
        tree="dynamic",
        tree_top_k=5,
        block_size=4,
        tree_budget=30,
    )
    assert draft_rows(dynamic) == 1 + 3 * 5
