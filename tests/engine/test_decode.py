"""Losslessness first: speculation gives stock's tokens, whatever the drafter, tree, batch and
sampling.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from losslessness import CONFIGS, make_requests
from tinymodels import tiny_decoder, tiny_tokenizer

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.job import DraftInputs
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.native import NativeEngine, Outcome
from draftsmith.engine.stock import decode_stock
from draftsmith.engine.types import Completion, Request, Sampling, SpecConfig

VOCAB = 64
INPUTS = DraftInputs(draft_vocab_ids=tuple(range(VOCAB - 1, -1, -1)))
OFF = SpecConfig()


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_decoder(num_layers=4, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def engine(model: Decoder) -> NativeEngine:
    return NativeEngine(model, tokenizer=tiny_tokenizer(VOCAB), load_draft_model=lambda path: model)


def outputs(outcome: Outcome) -> list[tuple[tuple[int, ...], str]]:
    return [(c.token_ids, c.stop_reason) for c in outcome.completions]


@lru_cache(maxsize=256)
def stock_output(model: Decoder, request: Request) -> tuple[tuple[int, ...], str]:
    output = decode_stock(model, request, tiny_tokenizer(VOCAB))
    return output.token_ids, output.stop_reason


def stock_outputs(model: Decoder, requests: list[Request]) -> list[tuple[tuple[int, ...], str]]:
    return [stock_output(model, request) for request in requests]


def run(
    engine: NativeEngine, requests: list[Request], config: SpecConfig, concurrency: int = 1
) -> Outcome:
    references = None
    if config.drafter == "scripted":
        stock = stock_outputs(engine.model, requests)  # type: ignore[arg-type]
        references = {r.request_id: ids for r, (ids, _) in zip(requests, stock, strict=True)}
    return engine.run(
        requests, config, concurrency=concurrency, inputs=INPUTS, references=references
    )


def check_counts(completion: Completion) -> None:
    """cases.md B2: committed tokens add up, rates stay within 0 and 1."""
    assert sum(step.committed for step in completion.steps) == len(completion.token_ids)
    for step in completion.steps:
        assert 0 <= step.accepted <= step.drafted
        assert step.accepted <= step.committed <= step.accepted + 1


SAMPLINGS: dict[str, dict[str, object]] = {
    "greedy": {},
    "warm": {"temperature": 0.8},
    "cut": {"temperature": 1.2, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    "penalised": {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "late": {
        "temperature": 0.7,
        "min_tokens": 9,
        "stop_token_ids": (5, 9),
        "stop_strings": ("ab",),
    },
}


@pytest.mark.parametrize("concurrency", [1, 6])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_stock_through_the_loop_equals_the_plain_oracle(
    engine: NativeEngine, model: Decoder, sampling: str, concurrency: int
) -> None:
    requests = make_requests(6, VOCAB, **SAMPLINGS[sampling])
    outcome = engine.run(requests, OFF, concurrency=concurrency)
    assert outputs(outcome) == stock_outputs(model, requests)


@pytest.mark.parametrize(
    ("sampling", "concurrency"), [*((name, 6) for name in SAMPLINGS), ("greedy", 1), ("warm", 1)]
)
@pytest.mark.parametrize("name", [*CONFIGS, "draft-model", "draft-model-tree"])
def test_speculation_equals_stock(
    engine: NativeEngine, model: Decoder, name: str, sampling: str, concurrency: int
) -> None:
    own = SpecConfig(drafter="draft_model", draft_model="itself", block_size=4)
    extra = {
        "draft-model": own,
        "draft-model-tree": replace(own, tree="static", branching=(2, 2, 1)),
    }
    config = {**CONFIGS, **extra}[name]
    requests = make_requests(6, VOCAB, **SAMPLINGS[sampling])
    outcome = run(engine, requests, config, concurrency)
    assert outputs(outcome) == stock_outputs(model, requests)
    for completion in outcome.completions:
        check_counts(completion)


@pytest.mark.parametrize("family", ["gemma3_text", "mistral", "qwen3", "smollm3"])
@pytest.mark.parametrize("name", ["recycle-tree", "exit-dynamic", "scripted"])
def test_other_families_stay_lossless_with_windows_shorter_than_the_output(
    family: str, name: str
) -> None:
    other = tiny_decoder(num_layers=4, vocab_size=VOCAB, family=family)
    requests = make_requests(4, VOCAB, max_tokens=30)
    outcome = run(NativeEngine(other, tokenizer=tiny_tokenizer(VOCAB)), requests, CONFIGS[name], 3)
    assert outputs(outcome) == stock_outputs(other, requests)


def test_oracle_drafts_are_all_accepted_and_wrong_ones_never(engine: NativeEngine) -> None:
    requests = make_requests(4, VOCAB)
    for completion in run(engine, requests, CONFIGS["oracle"], 2).completions:
        assert all(step.accepted == step.drafted for step in completion.steps)
        assert len(completion.steps) < len(completion.token_ids)
    for completion in run(engine, requests, CONFIGS["wrong"], 2).completions:
        assert all(step.accepted == 0 for step in completion.steps)


@pytest.mark.parametrize("name", ["recycle-tree", "exit-static", "mixed"])
def test_b1_equal_prompts_get_equal_counts_in_any_order(engine: NativeEngine, name: str) -> None:
    first, second = make_requests(6, VOCAB)[2], make_requests(6, VOCAB)[4]
    again = [replace(first, request_id=f"again{i}") for i in range(3)]
    repeated = run(engine, again, CONFIGS[name])
    assert len({completion.steps for completion in repeated.completions}) == 1
    forth = run(engine, [first, second], CONFIGS[name]).completions
    back = run(engine, [second, first], CONFIGS[name]).completions
    assert [c.steps for c in forth] == [c.steps for c in reversed(back)]


def test_b2_tokens_behind_an_accepted_eos_are_not_counted(engine: NativeEngine) -> None:
    request = make_requests(2, VOCAB, max_tokens=24)[1]
    plain = engine.run([request], OFF).completions[0].token_ids
    at = next(i for i in range(3, 12) if plain[i] not in plain[:i])
    ended = replace(request, sampling=replace(request.sampling, stop_token_ids=(plain[at],)))
    config = SpecConfig(drafter="scripted", script="oracle", block_size=16)
    references = {request.request_id: plain}
    done = engine.run([ended], config, references=references).completions[0]
    assert done.token_ids == plain[: at + 1]
    assert done.stop_reason == "stop_token"
    assert done.steps[1].committed == at  # the first token came with the prefill
    check_counts(done)


def test_b2_a_step_without_a_draft_has_no_drafted_tokens(engine: NativeEngine) -> None:
    request = Request(request_id="one", prompt_ids=(9,), sampling=Sampling(max_tokens=2))
    done = engine.run([request], CONFIGS["ngram"]).completions[0]
    assert [step.drafted for step in done.steps] == [0] * len(done.steps)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("where", ["stop_token_ids", "eos"])
def test_b4_any_token_as_eos_ends_the_request_at_its_first_hit(
    model: Decoder, engine: NativeEngine, block_size: int, where: str
) -> None:
    request = make_requests(6, VOCAB, max_tokens=12)[3]
    plain = engine.run([request], OFF).completions[0].token_ids
    for position in range(1, 9):
        end = plain[position]
        if where == "eos":
            ended, target = request, _with_eos(model, (end, VOCAB - 1))
        else:
            ended = replace(request, sampling=replace(request.sampling, stop_token_ids=(end,)))
            target = model
        expected = decode_stock(target, ended)
        config = SpecConfig(drafter="scripted", script="oracle", block_size=block_size)
        done = (
            NativeEngine(target)
            .run([ended], config, references={request.request_id: plain})
            .completions[0]
        )
        assert (done.token_ids, done.stop_reason) == (expected.token_ids, expected.stop_reason)
        assert len(done.token_ids) == plain.index(end) + 1


def test_b4_a_drafted_eos_that_is_rejected_does_not_end_the_request(engine: NativeEngine) -> None:
    request = make_requests(6, VOCAB, max_tokens=10)[3]
    plain = engine.run([request], OFF).completions[0].token_ids
    never = next(token for token in range(2, VOCAB) if token not in plain)
    ended = replace(request, sampling=replace(request.sampling, stop_token_ids=(never,)))
    misled = {request.request_id: (plain[0], plain[1], never, *plain[3:])}
    config = SpecConfig(drafter="scripted", script="oracle", block_size=4)
    done = engine.run([ended], config, references=misled).completions[0]
    assert done.token_ids == plain


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_b15_rows_of_a_ragged_batch_equal_their_solo_runs(
    engine: NativeEngine, order: tuple[int, ...]
) -> None:
    requests = [make_requests(3, VOCAB)[i] for i in order]
    for name in ("mixed", "scripted", "exit-static"):
        together = run(engine, requests, CONFIGS[name], concurrency=3).completions
        for request, done in zip(requests, together, strict=True):
            (solo,) = run(engine, [request], CONFIGS[name]).completions
            assert (done.token_ids, done.steps) == (solo.token_ids, solo.steps)


def test_a_seed_gives_the_same_output_whatever_the_slot_and_neighbours(
    engine: NativeEngine,
) -> None:
    requests = make_requests(6, VOCAB, temperature=1.0)
    forward = engine.run(requests, OFF, concurrency=4).completions
    backward = engine.run(requests[::-1], OFF, concurrency=2).completions
    assert [c.token_ids for c in forward] == [c.token_ids for c in reversed(backward)]


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_sampled_verifiers_run_end_to_end_and_are_greedy_at_zero(
    engine: NativeEngine, model: Decoder, verifier: str
) -> None:
    config = replace(CONFIGS["exit-trim"], verifier=verifier)  # type: ignore[arg-type]
    greedy = make_requests(4, VOCAB)
    assert outputs(run(engine, greedy, config, 2)) == stock_outputs(model, greedy)
    warm = run(engine, make_requests(4, VOCAB, temperature=0.9), config, 2)
    assert sum(step.accepted for c in warm.completions for step in c.steps) > 0
    for completion in warm.completions:
        check_counts(completion)


@pytest.mark.parametrize(
    ("request_fields", "message"),
    [
        ({"prompt_ids": ()}, "empty prompt"),
        ({"prompt_ids": (64,)}, "token id 64, the target's vocabulary has 64"),
        ({"sampling": Sampling(max_tokens=100_000)}, "needs 1000.. positions.*lower max_tokens"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p"),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(
    engine: NativeEngine, request_fields: dict[str, object], message: str
) -> None:
    request = replace(make_requests(1, VOCAB)[0], **request_fields)  # type: ignore[arg-type]
    with pytest.raises(EngineInputError, match=message):
        engine.run([request], OFF)


def _with_eos(model: Decoder, eos: tuple[int, ...]) -> Decoder:
    other = tiny_decoder(num_layers=4, vocab_size=VOCAB)
    other._info = replace(model.info, eos_token_ids=eos)
    return other
