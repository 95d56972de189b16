"""From measurements to score: what counts, what fails, what is infeasible."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from draftsmith.engine.job import OutputRecord, UnitTiming
from draftsmith.tuner.deployment import Objective
from draftsmith.tuner.evidence import BadMeasurementError, Evidence, StockRecord, collect
from draftsmith.tuner.objective import decode_only, ratio_interval, score

REFERENCES = {"a": (1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}
STOCK = StockRecord(references=REFERENCES, ties=0, positions=1000)  # so 1 in 1001 by chance


def timing(name: str, request: str, seconds: float, **more: object) -> UnitTiming:
    values: dict[str, object] = {
        "config": name,
        "unit": ord(request),
        "repeat": 0,
        "request_ids": (request,),
        "category": "",
        "seconds": seconds,
        "prefill_s": 0.1,
        "num_tokens": 3,
        "num_steps": 2,
        "num_drafted": 4,
        "num_accepted": 1,
    }
    return UnitTiming(**{**values, **more})  # type: ignore[arg-type]


def output(request: str, tokens: tuple[int, ...] | None = None, **more: object) -> OutputRecord:
    values: dict[str, object] = {
        "config": "candidate",
        "request_id": request,
        "token_ids": REFERENCES[request] if tokens is None else tokens,
        "stop_reason": "length",
        "judgement": "exact",
    }
    return OutputRecord(**{**values, **more})  # type: ignore[arg-type]


def evidence(
    times: dict[str, tuple[float, float]], outputs: list[OutputRecord] | None = None
) -> Evidence:
    timings = []
    for request, (stock, own) in times.items():
        timings += [timing("stock", request, stock), timing("candidate", request, own)]
    made = [output(request) for request in times] if outputs is None else outputs
    return collect("candidate", timings, made, STOCK)


def test_b18_the_headline_is_the_ratio_of_sums() -> None:
    """cases.md B18: 10 s and 1 s against 5 s and 1 s are 1.83, not the mean of ratios 1.50."""
    made = score(evidence({"a": (10.0, 5.0), "b": (1.0, 1.0)}), Objective())
    assert made.ratio == pytest.approx(11 / 6)


def test_b18_shorter_output_is_no_speed_up() -> None:
    """cases.md B18: stopping early is fast, differs from stock, and is not valid."""
    outputs = [
        output("a", (1,), judgement="divergent", position=1, emitted=0, expected=2, margin=3.0)
    ]
    made = score(evidence({"a": (10.0, 1.5)}, outputs), Objective())
    assert not made.feasible and made.ratio == 0.0
    assert "divergent" in made.reason and "position 1" in made.reason


def test_tied_outputs_are_valid_and_their_time_does_not_count() -> None:
    outputs = [output("a"), output("b", (4, 5, 7), judgement="tie", num_ties=1), output("c")]
    times = {"a": (2.0, 1.0), "b": (100.0, 1.0), "c": (2.0, 1.0)}
    found = evidence(times, outputs)
    assert score(found, Objective()).ratio == pytest.approx(2.0)
    assert found.num_unequal_units == 1 and found.num_ties == 1


def test_no_equal_output_means_no_score() -> None:
    made = score(
        evidence({"a": (2.0, 1.0)}, [output("a", (1, 2, 9), judgement="tie")]), Objective()
    )
    assert not made.feasible and "no prompt" in made.reason


def test_outputs_lossless_in_distribution_count_by_token() -> None:
    timings = [
        timing("stock", "a", 3.0, num_tokens=3),
        timing("candidate", "a", 4.0, num_tokens=6),
    ]
    outputs = [output("a", (1, 9, 9, 9, 9, 9), judgement="distribution")]
    found = collect("candidate", timings, outputs, STOCK)
    assert score(found, Objective()).ratio == pytest.approx(1.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "", 0.0, -1.0, True])
def test_a_time_that_is_none_is_refused_with_its_value(value: object) -> None:
    timings = [timing("stock", "a", 1.0), timing("candidate", "a", value)]  # type: ignore[arg-type]
    with pytest.raises(BadMeasurementError) as caught:
        collect("candidate", timings, [output("a")], STOCK)
    assert repr(value) in str(caught.value) and "candidate" in str(caught.value)


def test_a_missing_output_or_baseline_is_refused() -> None:
    with pytest.raises(BadMeasurementError, match="no output for a"):
        evidence({"a": (1.0, 1.0)}, [])
    with pytest.raises(BadMeasurementError, match="stock was not timed"):
        collect("candidate", [timing("candidate", "a", 1.0)], [output("a")], STOCK)


def test_suspect_and_too_large_are_infeasible() -> None:
    good = evidence({"a": (2.0, 1.0), "b": (2.0, 1.0)})
    tied = replace(good, num_tied_positions=3)
    assert "ties" in score(tied, Objective()).reason
    large = replace(good, peak_memory_bytes=3 * 1024**3)
    assert "3.00 GiB" in score(large, Objective(max_memory_gb=2.0)).reason
    assert score(large, Objective(max_memory_gb=4.0)).feasible


def test_ties_are_judged_over_everything_that_was_pooled() -> None:
    """One tie a job looks like chance in each, six in a row do not; stock's own counts once."""

    def job(request: str) -> Evidence:
        ties = [output(request, judgement="tie", num_ties=1)]
        return evidence({request: (2.0, 1.0)}, ties)

    one = job("a")
    assert not one.suspect and score(one, Objective()).feasible
    pooled = one + job("b") + job("c") + job("a") + job("b") + job("c")
    assert pooled.num_tied_positions == 6 and pooled.num_positions == 18
    assert (pooled.stock_ties, pooled.stock_positions) == (0, 1000)
    assert pooled.suspect and not score(pooled, Objective()).feasible


@pytest.mark.parametrize("num_tokens", [2, 4])
def test_time_of_a_baseline_that_made_another_length_does_not_count(num_tokens: int) -> None:
    timings = [
        timing("stock", "a", 30.0, num_tokens=num_tokens),
        timing("candidate", "a", 1.0),
        timing("stock", "b", 2.0),
        timing("candidate", "b", 1.0),
    ]
    found = collect("candidate", timings, [output("a"), output("b")], STOCK)
    assert score(found, Objective()).ratio == pytest.approx(2.0)
    assert found.num_unequal_units == 1


def test_evidence_adds_up() -> None:
    left, right = evidence({"a": (2.0, 1.0)}), evidence({"b": (4.0, 1.0)})
    both = left + right
    assert score(both, Objective()).ratio == pytest.approx(3.0)
    assert both.num_outputs == 2 and both.tokens_per_step == pytest.approx(1.5)
    assert both.request_ids == {"a", "b"}


def test_b2_acceptance_never_divides_by_nothing() -> None:
    """cases.md B2: no draft, no denominator."""
    outputs = [
        output("a", accepted_by_position=(3, 1, 0), drafted_by_position=(4, 2, 0)),
        output("b", accepted_by_position=(1,), drafted_by_position=(4,)),
    ]
    found = evidence({"a": (1.0, 1.0), "b": (1.0, 1.0)}, outputs)
    assert found.acceptance_by_position == (0.5, 0.5)
    assert Evidence().acceptance_by_position == () and Evidence().tokens_per_step is None


def test_two_repeats_of_a_unit_count_as_their_mean() -> None:
    timings = [
        timing("stock", "a", 2.0),
        timing("stock", "a", 4.0, repeat=1),
        timing("candidate", "a", 1.0),
        timing("candidate", "a", 2.0, repeat=1),
    ]
    found = collect("candidate", timings, [output("a")], STOCK)
    assert len(found.pairs) == 1
    assert score(found, Objective()).ratio == pytest.approx(2.0)


def test_a_stall_in_one_of_three_repeats_does_not_count() -> None:
    timings = [
        *(timing("stock", "a", s, repeat=i) for i, s in enumerate((2.0, 9.0, 2.2))),
        *(timing("candidate", "a", s, repeat=i) for i, s in enumerate((1.1, 1.0, 30.0))),
    ]
    found = collect("candidate", timings, [output("a")], STOCK)
    assert score(found, Objective()).ratio == pytest.approx(2.0)


def test_decode_only_takes_prefill_off() -> None:
    found = evidence({"a": (2.1, 1.1), "b": (2.1, 1.1)})
    assert ratio_interval(found.pairs, seconds=decode_only).ratio == pytest.approx(2.0)
