"""Logits that are no numbers are refused wherever a token would be chosen from them, and only
there.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tablemodel import VOCAB, TableModel, table_of
from tinymodels import decoder_of, random_reference, tiny_config

from draftsmith.engine.distribution import distribution_gate
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.forcing import EmittedOutput, force_outputs
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.stock import decode_stock
from draftsmith.engine.types import Request, Sampling, SpecConfig
from draftsmith.engine.verify import best_tokens
from draftsmith.kernels.backend import use_backend

# 2 -> 5 -> 9 -> 12 -> 20 -> 21; a logit of 60 leaves no other token a chance at any temperature.
CHAIN = (5, 9, 12, 20, 21)
ROWS = {before: {after: 60.0} for before, after in zip((2, *CHAIN[:-1]), CHAIN, strict=True)}
SPOILT = 12  # the row after it decides output position 3
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.1},
    "min tokens": {"min_tokens": 5},
    "warm": {"temperature": 1.0},
    "top-k": {"temperature": 1.0, "top_k": 4},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "min-p": {"temperature": 1.0, "min_p": 0.1},
    "all cuts": {"temperature": 0.7, "min_p": 0.1, "top_k": 4, "top_p": 0.9},
}
WARM = ("warm", "top-k", "top-p", "min-p", "all cuts")
ROW = {
    "one NaN": ([40], torch.nan, "NaN"),
    "all NaN": (range(VOCAB), torch.nan, "NaN"),
    "many NaN": (range(30), torch.nan, "NaN"),
    "all -inf": (range(VOCAB), -torch.inf, "infinite numbers"),
}


def request_of(**sampling: Any) -> Request:
    fields = {"max_tokens": 5, "ignore_eos": True, **sampling}
    return Request(request_id="seven", prompt_ids=(2,), sampling=Sampling(**fields))


def spoilt_model(row: str) -> TableModel:
    columns, value, _ = ROW[row]
    table = table_of(ROWS)
    table[SPOILT, list(columns)] = value
    return TableModel(table)


def overflowing() -> Decoder:
    reference = random_reference(tiny_config())
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1e10)
    return decoder_of(reference)


def refusal(row: str, position: int = 3) -> str:
    return f"output position {position} of request seven hold {ROW[row][2]}.*bfloat16 or float32"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("row", ROW)
def test_stock_refuses_at_the_position(row: str, sampling: str) -> None:
    with pytest.raises(EngineInputError, match=refusal(row)):
        decode_stock(spoilt_model(row), request_of(**SAMPLINGS[sampling]))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("row", ROW)
@pytest.mark.parametrize(
    "config",
    [
        SpecConfig(),
        SpecConfig(drafter="scripted", block_size=4),
        SpecConfig(drafter="scripted", tree="static", branching=(2, 2, 1)),
    ],
    ids=("stock", "chain", "tree"),
)
def test_the_engine_refuses_at_the_position(row: str, sampling: str, config: SpecConfig) -> None:
    engine = NativeEngine(spoilt_model(row))
    request = request_of(**SAMPLINGS[sampling])
    references = None if config.drafter == "none" else {"seven": CHAIN}
    with pytest.raises(EngineInputError, match=refusal(row)):
        engine.run([request], config, references=references)


@pytest.mark.parametrize("sampling", WARM)
@pytest.mark.parametrize("row", ROW)
@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_sampled_verifiers_refuse_at_the_position(row: str, sampling: str, verifier: Any) -> None:
    config = SpecConfig(drafter="scripted", block_size=4, verifier=verifier)
    with pytest.raises(EngineInputError, match=refusal(row)):
        NativeEngine(spoilt_model(row)).run(
            [request_of(**SAMPLINGS[sampling])], config, references={"seven": CHAIN}
        )


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rows_of_rejected_drafts_may_hold_nan(sampling: str, verifier: Any) -> None:
    table = table_of(ROWS)
    table[[token + 1 for token in CHAIN]] = torch.nan  # what the script drafts in their place
    request = request_of(**SAMPLINGS[sampling])
    config = SpecConfig(drafter="scripted", script="wrong", block_size=3, verifier=verifier)
    outcome = NativeEngine(TableModel(table)).run([request], config, references={"seven": CHAIN})
    assert outcome.completions[0].token_ids == CHAIN


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("row", ROW)
def test_forcing_refuses_what_stock_could_not_choose(row: str, sampling: str) -> None:
    for last in (0, 40, 20):  # 0: the arg-max of a row that is NaN throughout
        output = EmittedOutput("seven", (*CHAIN[:3], last, 21))
        with pytest.raises(EngineInputError, match=refusal(row)):
            force_outputs(spoilt_model(row), [request_of(**SAMPLINGS[sampling])], [output])


def test_forcing_ends_at_a_divergence_before_the_row() -> None:
    output = EmittedOutput("seven", (5, 50, 12, 20, 21))
    (verdict,) = force_outputs(spoilt_model("all NaN"), [request_of()], [output])
    assert (verdict.judgement, verdict.position, verdict.expected) == ("divergent", 1, 9)


@pytest.mark.parametrize("sampling", ["greedy", *WARM])
@pytest.mark.parametrize("row", ROW)
def test_the_distribution_gate_refuses(row: str, sampling: str) -> None:
    output = EmittedOutput("seven", CHAIN)
    with pytest.raises(EngineInputError, match=refusal(row)):
        distribution_gate(spoilt_model(row), [request_of(**SAMPLINGS[sampling])], [output])


def test_a_sampled_draft_of_nan_is_refused() -> None:
    """Rejection would accept anything from a distribution of NaN."""
    good = decoder_of(random_reference(tiny_config()))
    engine = NativeEngine(good, load_draft_model=lambda path: overflowing())
    config = SpecConfig(
        drafter="draft_model", draft_model="bad", block_size=3, verifier="rejection"
    )
    with pytest.raises(EngineInputError, match="logits of the drafter at output position 1"):
        engine.run([request_of(temperature=1.0)], config)


def test_a_score_that_the_temperature_spoils_is_not_the_checkpoints_fault() -> None:
    table = torch.zeros(VOCAB, VOCAB)
    with pytest.raises(EngineInputError, match="no token is left .* temperature 1e-60"):
        decode_stock(TableModel(table), request_of(temperature=1e-60))


def test_min_tokens_that_bans_the_whole_vocabulary_is_refused() -> None:
    stops = tuple(range(VOCAB))
    request = request_of(min_tokens=2, stop_token_ids=stops)
    with pytest.raises(EngineInputError, match="no token is left .* min_tokens"):
        decode_stock(TableModel(table_of(ROWS)), request)


@pytest.mark.parametrize("backend", ["cpp", "reference"])
@pytest.mark.parametrize("size", [5, 64, 1000])
def test_greedy_rows_are_told_by_their_best_number(backend: Any, size: int, cpp: None) -> None:
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(0))
    logits[1, 0] = logits[2, size // 2] = logits[3, size - 1] = torch.nan
    logits[4] = -torch.inf
    logits[5, 2] = torch.inf
    with use_backend(backend):
        best = best_tokens(logits)
    assert best == [int(logits[0].argmax()), -1, -1, -1, -1, 2]


def test_a_decoder_whose_weights_overflow_is_refused() -> None:
    model = overflowing()
    message = r"logits of the target at output position 0 of request seven hold NaN"
    for config in (SpecConfig(), SpecConfig(drafter="ngram")):
        for temperature in (0.0, 1.0):
            with pytest.raises(EngineInputError, match=message):
                NativeEngine(model).run([request_of(temperature=temperature)], config)
