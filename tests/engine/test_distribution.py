"""The distribution gate judged itself: other temperatures, stray tokens, wrong ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from losslessness import make_requests
from tinymodels import tiny_decoder

from draftsmith.engine.distribution import distribution_gate
from draftsmith.engine.forcing import EmittedOutput, ForcedVerdict, force_outputs
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.types import Request, SpecConfig

VOCAB = 64
VERIFIED = SpecConfig(drafter="early_exit", exit_layer=1, block_size=3)
HOT = {"temperature": 1.1, "top_k": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_decoder(num_layers=2, vocab_size=VOCAB)


def gate(
    model: Decoder, requests: Sequence[Request], outputs: Sequence[EmittedOutput]
) -> list[ForcedVerdict]:
    return list(distribution_gate(model, requests, outputs))


def emitted(model: Decoder, requests: Sequence[Request], config: SpecConfig) -> list[EmittedOutput]:
    done = NativeEngine(model).run(requests, config, concurrency=4).completions
    return [EmittedOutput(one.request_id, one.token_ids, one.stop_reason) for one in done]


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_outputs_of_sampled_verifiers_pass_the_distribution_gate(
    model: Decoder, verifier: str
) -> None:
    requests = make_requests(12, VOCAB, **HOT)
    config = replace(VERIFIED, verifier=verifier)  # type: ignore[arg-type]
    outputs = emitted(model, requests, config)
    assert {verdict.judgement for verdict in gate(model, requests, outputs)} == {"distribution"}
    # The tokens are not stock's own, so forcing must object.
    forced = force_outputs(model, requests, outputs)
    assert "divergent" in {verdict.judgement for verdict in forced}


@pytest.mark.parametrize("temperature", [0.4, 3.0])
def test_outputs_of_another_temperature_fail_the_distribution_gate(
    model: Decoder, temperature: float
) -> None:
    requests = make_requests(12, VOCAB, **HOT)
    others = [
        replace(one, sampling=replace(one.sampling, temperature=temperature)) for one in requests
    ]
    verdicts = gate(model, requests, emitted(model, others, SpecConfig()))
    assert {verdict.judgement for verdict in verdicts} == {"divergent"}
    assert all("standard deviations from 0" in verdict.detail for verdict in verdicts)


def test_a_token_outside_the_support_fails_the_gate_alone(model: Decoder) -> None:
    requests = make_requests(6, VOCAB, **HOT)
    outputs = emitted(model, requests, SpecConfig())
    stray = next(
        token
        for token in range(VOCAB)
        if gate(model, requests[:1], [_with(outputs[0], 4, token)])[0].judgement == "divergent"
    )
    outputs[0] = _with(outputs[0], 4, stray)
    first, *others = gate(model, requests, outputs)
    assert (first.judgement, first.position, first.emitted) == ("divergent", 4, stray)
    assert first.detail == "token outside the warped support"
    assert {verdict.judgement for verdict in others} == {"distribution"}


def test_the_gate_judges_ends_and_ids_too(model: Decoder) -> None:
    requests = make_requests(3, VOCAB, **HOT)
    outputs = emitted(model, requests, SpecConfig())
    ids = outputs[0].token_ids
    cases = {
        ids[:-1]: (len(ids) - 1, "ends early"),
        (*ids, 4): (len(ids), "goes on after length"),
        (*ids[:2], 64, *ids[3:]): (2, "outside the vocabulary"),
        (): (0, "empty"),
    }
    for tokens, (position, detail) in cases.items():
        changed = [EmittedOutput(outputs[0].request_id, tokens), *outputs[1:]]
        first, *others = gate(model, requests, changed)
        assert (first.judgement, first.position) == ("divergent", position)
        assert detail in first.detail
        assert {verdict.judgement for verdict in others} == {"distribution"}


def _with(output: EmittedOutput, position: int, token: int) -> EmittedOutput:
    ids = list(output.token_ids)
    ids[position] = token
    return replace(output, token_ids=tuple(ids))
