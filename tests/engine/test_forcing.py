"""Token forcing judged itself: ties, ends, noise, suspicion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from losslessness import make_requests
from scipy.stats import binom
from tablemodel import END, VOCAB, TableModel, table_of
from tinymodels import tiny_decoder

from draftsmith.engine.distribution import distribution_gate
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.forcing import (
    MAX_TIE_LOGITS,
    EmittedOutput,
    ForcedVerdict,
    force_outputs,
    is_suspect,
    measure_margin_noise,
)
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.stock import decode_stock
from draftsmith.engine.types import (
    Request,
    Sampling,
    SpecConfig,
    StopReason,
)


def request_of(prompt: Sequence[int] = (2,), **sampling: object) -> Request:
    fields: dict[str, object] = {"max_tokens": 4, **sampling}
    return Request(
        request_id="one",
        prompt_ids=tuple(prompt),
        sampling=Sampling(**fields),  # type: ignore[arg-type]
    )


def force(
    model: TableModel | Decoder,
    request: Request,
    tokens: Sequence[int],
    noise: float = 0.0,
    reason: StopReason | None = None,
) -> ForcedVerdict:
    output = EmittedOutput(request.request_id, tuple(tokens), reason)
    (verdict,) = force_outputs(model, [request], [output], margin_noise=noise)
    return verdict


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_decoder(num_layers=2, vocab_size=VOCAB)


# Greedy: 2 -> 5 (27 exactly equal) -> 9 (11 one logit behind) -> END.
TIED = table_of({2: {27: 3.0, 5: 3.0}, 5: {9: 2.0, 11: 1.0}, 27: {9: 2.0, 11: 1.0}})


@pytest.mark.parametrize("drafter", ["none", "recycle", "scripted"])
def test_b14_at_an_exact_tie_stock_and_speculation_take_the_lowest_id(drafter: str) -> None:
    target, request = TableModel(TIED), request_of()
    stock = decode_stock(target, request)
    assert stock.token_ids == (5, 9, END)
    config = SpecConfig(drafter=drafter, block_size=3)
    done = NativeEngine(target).run([request], config, references={"one": stock.token_ids})
    assert done.completions[0].token_ids == stock.token_ids
    assert force(target, request, stock.token_ids, reason="stop_token").judgement == "exact"


def test_b14_a_flip_of_one_logit_is_divergent_even_behind_a_tie() -> None:
    target, request = TableModel(TIED), request_of()
    tie = force(target, request, (27, 9, END), noise=0.02)
    assert (tie.judgement, tie.num_ties, tie.position, tie.margin) == ("tie", 1, 0, 0.0)
    for noise in (0.0, 0.02, 100.0):
        flipped = force(target, request, (27, 11, END), noise=noise)
        assert (flipped.judgement, flipped.position) == ("divergent", 1)
        assert (flipped.emitted, flipped.expected, flipped.margin) == (11, 9, 1.0)
        assert flipped.num_ties == 1


@pytest.mark.parametrize(
    ("behind", "noise", "judgement"),
    [
        (0.01, 0.02, "tie"),
        (0.02, 0.01, "divergent"),
        (0.01, 0.0, "divergent"),
        (0.24, 100.0, "tie"),
        (0.26, 100.0, "divergent"),
    ],
)
def test_ties_are_within_the_noise_and_never_above_a_quarter_logit(
    behind: float, noise: float, judgement: str
) -> None:
    target = TableModel(table_of({2: {5: 3.0, 27: 3.0 - behind}}))
    verdict = force(target, request_of(), (27, END), noise)
    assert verdict.judgement == judgement
    assert verdict.margin == pytest.approx(behind, abs=1e-6)
    assert MAX_TIE_LOGITS == 0.25


def test_at_a_temperature_the_noise_is_divided_by_it(model: Decoder) -> None:
    """At T = 0.5 margins of scores are twice those of logits."""
    request = replace(
        make_requests(5, VOCAB, temperature=0.5, ignore_eos=True)[4], request_id="one"
    )
    stock = NativeEngine(model).run([request], SpecConfig(), capture_margins=True).completions[0]
    position = min(range(len(stock.margins)), key=lambda i: stock.margins[i])
    margin = stock.margins[position]
    tokens = list(stock.token_ids[: position + 1])
    short = replace(request, sampling=replace(request.sampling, max_tokens=position + 1))
    runner_up = [
        force(model, short, [*tokens[:-1], token], noise=margin * 0.5 * 1.01)
        for token in range(VOCAB)
        if token != tokens[-1]
    ]
    ties = [verdict for verdict in runner_up if verdict.judgement == "tie"]
    assert [tie.position for tie in ties] == [position]
    assert ties[0].margin == pytest.approx(margin, rel=1e-3)
    assert ties[0].emitted is not None
    again = force(model, short, [*tokens[:-1], ties[0].emitted], noise=margin * 0.5 * 0.99)
    assert again.judgement == "divergent"


@pytest.mark.parametrize("fields", [{"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.2}])
def test_every_other_token_is_divergent_under_cuts(
    model: Decoder, fields: dict[str, object]
) -> None:
    (request,) = make_requests(1, VOCAB, temperature=1.3, max_tokens=6, ignore_eos=True, **fields)
    stock = decode_stock(model, request).token_ids
    for position, right in enumerate(stock):
        short = replace(request, sampling=replace(request.sampling, max_tokens=position + 1))
        for token in range(0, VOCAB, 3):
            verdict = force(model, short, [*stock[:position], token])
            assert (verdict.judgement == "exact") == (token == right)
            assert verdict.judgement != "tie"


@pytest.mark.parametrize(
    ("tokens", "reason", "position", "detail"),
    [
        ((5,), None, 1, "ends early, after 1 tokens"),
        ((5, 9, END, 7), None, 3, "goes on after stop_token at position 2"),
        ((5, 9, END), "length", 3, "says it stopped by length, stock stops by stop_token"),
        ((), None, 0, "the output is empty"),
        ((5, 64, END), None, 1, "token id 64 is outside the vocabulary of 64"),
        ((5, -1), None, 1, "token id -1 is outside"),
        ((5, 11, END, 7), None, 1, "not stock's choice"),
        ((5, 11, 64), None, 1, "not stock's choice"),
    ],
)
def test_wrong_ends_and_ids_are_divergent_at_the_first_position_they_concern(
    tokens: tuple[int, ...], reason: StopReason | None, position: int, detail: str
) -> None:
    verdict = force(TableModel(TIED), request_of(), tokens, 100.0, reason)
    assert (verdict.judgement, verdict.position) == ("divergent", position)
    assert detail in verdict.detail


def test_an_output_that_passes_its_length_is_divergent_at_the_surplus_token(
    model: Decoder,
) -> None:
    (request,) = make_requests(1, VOCAB, max_tokens=6, ignore_eos=True)
    longer = decode_stock(model, replace(request, sampling=Sampling(max_tokens=9, ignore_eos=True)))
    verdict = force(model, request, longer.token_ids)
    assert (verdict.judgement, verdict.position) == ("divergent", 6)
    assert verdict.emitted == longer.token_ids[6]


@pytest.mark.parametrize("judge", [force_outputs, distribution_gate])
def test_an_output_of_no_request_is_refused(judge: object) -> None:
    output = EmittedOutput("other", (5, 9, END))
    with pytest.raises(EngineInputError, match="output other belongs to no request"):
        judge(TableModel(TIED), [request_of()], [output])  # type: ignore[operator]


def test_margin_noise_is_zero_where_rows_are_stable(model: Decoder) -> None:
    if not model.info.row_stable:
        pytest.skip("this machine's kernels are not row-stable")
    for temperature in (0.0, 0.8):
        requests = make_requests(4, VOCAB, temperature=temperature)
        stock = NativeEngine(model).run(requests, SpecConfig(), capture_margins=True)
        estimate = measure_margin_noise(model, requests, stock.completions)
        assert (estimate.noise, estimate.num_ties) == (0.0, 0)
        assert estimate.num_positions == sum(len(one.token_ids) for one in stock.completions)


def test_margin_noise_is_the_change_between_one_row_and_several() -> None:
    """Forced rows favour odd ids by 0.02: two of the three margins change by it, and the near pair
    after token 9 is chosen otherwise.
    """
    rows = {2: {5: 3.0, 8: 2.0}, 5: {9: 2.0, 11: 1.0}, 9: {8: 2.0, 7: 1.99}}
    target, request = TableModel(table_of(rows), wobble=0.02), request_of(max_tokens=3)
    stock = NativeEngine(target).run([request], SpecConfig(), capture_margins=True).completions
    assert stock[0].token_ids == (5, 9, 8)
    estimate = measure_margin_noise(target, [request], stock)
    assert estimate.noise == pytest.approx(0.02, abs=1e-4)
    assert (estimate.num_positions, estimate.num_ties) == (3, 1)
    # The one-token stock step has the last word on what the forced pass would choose otherwise.
    assert force(target, request, (5, 9, 8)).judgement == "exact"
    assert force(target, request, (5, 9, 7), estimate.noise).judgement == "exact"


def test_margins_are_needed_to_measure_their_noise(model: Decoder) -> None:
    requests = make_requests(1, VOCAB)
    done = NativeEngine(model).run(requests, SpecConfig()).completions
    with pytest.raises(EngineInputError, match="run stock with capture_margins=True"):
        measure_margin_noise(model, requests, done)


@pytest.mark.parametrize("stock", [(0, 2000), (3, 2000), (0, 100), (40, 1000)])
def test_suspicion_starts_where_the_binomial_tail_passes_one_in_a_thousand(
    stock: tuple[int, int],
) -> None:
    stock_ties, stock_positions = stock
    rate = (stock_ties + 1) / (stock_positions + 1)
    for positions in (50, 500, 3000):
        expected = 1 + int(binom.isf(0.001, positions, rate))  # fewest ties with a tail under 0.001
        for ties in range(max(0, expected - 3), expected + 4):
            tail = binom.sf(ties - 1, positions, rate)
            assert is_suspect(ties, positions, *stock) == (tail < 0.001)
        assert not is_suspect(expected - 1, positions, *stock)
        assert is_suspect(expected + 1, positions, *stock)
        assert not is_suspect(0, positions, *stock)
    assert not is_suspect(5, 10, 0, 0)  # nothing is known of stock
