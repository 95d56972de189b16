from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from draftsmith.engine.job import MeasureJob, MeasureResult, OutputRecord
from draftsmith.engine.types import RowBatch, SpecConfig
from draftsmith.kernels.backend import use_backend
from draftsmith.workers.measure import Measurer
from tests.support.clock import FakeClock
from tests.support.measuring import (
    NGRAM,
    ORACLE,
    WRONG,
    CostlyModel,
    loader_of,
    make_job,
    make_requests,
)


def measurer(model: CostlyModel) -> Measurer:
    return Measurer("w0", load=loader_of(model), clock=model.clock)


def measure(job: MeasureJob, model: CostlyModel | None = None) -> MeasureResult:
    return measurer(model or CostlyModel(FakeClock())).run(job)


def outputs_of(result: MeasureResult, config: str) -> list[OutputRecord]:
    return [record for record in result.outputs if record.config == config]


def test_configurations_alternate_within_units_and_between_repeats() -> None:
    result = measure(make_job({"trial": NGRAM}, num_requests=2, repeats=2))
    assert result.status == "ok", result.reason
    assert [(t.config, t.unit, t.repeat) for t in result.timings] == [
        ("stock", 0, 0), ("trial", 0, 0), ("trial", 1, 0), ("stock", 1, 0),
        ("trial", 0, 1), ("stock", 0, 1), ("stock", 1, 1), ("trial", 1, 1),
    ]  # fmt: skip


def test_time_is_forwards_and_lossless_outputs_are_exact() -> None:
    result = measure(make_job({"trial": ORACLE}, num_requests=2))
    stock, trial = ([t for t in result.timings if t.config == name] for name in ("stock", "trial"))
    assert [t.seconds for t in sorted(stock, key=lambda t: t.unit)] == [12.0, 12.0]
    assert all(t.prefill_s == 1.0 and t.num_tokens == 12 and t.num_steps == 12 for t in stock)
    assert all(t.seconds == t.num_steps < 12.0 for t in trial)
    assert {record.judgement for record in result.outputs} == {"exact"}
    assert result.margin_noise is not None
    assert result.worker == "w0"


def test_b18_warm_up_is_not_counted() -> None:
    """B18: the first call's extra 2 s appear in no timing."""
    job = make_job({"trial": NGRAM}, num_requests=2)
    cold = measure(job, CostlyModel(FakeClock(), first_s=2.0))
    plain = measure(job, CostlyModel(FakeClock()))
    assert cold.timings == plain.timings
    assert cold.wall_s == plain.wall_s + 2.0
    unwarmed = measure(replace(job, warmup_tokens=0), CostlyModel(FakeClock(), first_s=2.0))
    assert unwarmed.timings[0].seconds == plain.timings[0].seconds + 2.0


def test_warm_up_makes_the_caches_that_the_timed_units_use() -> None:
    """Prompts on both sides of a capacity step, the short one first."""
    short, other = make_requests(2)
    long = replace(other, prompt_ids=other.prompt_ids * 40)
    model = CostlyModel(FakeClock())
    job = make_job({"trial": NGRAM}, requests=(short, long), margin_noise=0.0)
    result = measure(job, model)
    assert {record.judgement for record in result.outputs} == {"exact"}
    assert model.num_caches == 2  # one a configuration


def test_b1_order_of_configurations_does_not_change_counts() -> None:
    """B1: first or last, after whatever ran before."""

    def counts(names: list[str]) -> dict[tuple[str, int], tuple[int, int, int]]:
        configs = {"ngram": NGRAM, "suffix": SpecConfig(drafter="suffix"), "wrong": WRONG}
        job = make_job({name: configs[name] for name in names})
        return {
            (t.config, t.unit): (t.num_drafted, t.num_accepted, t.num_steps)
            for t in measure(job).timings
        }

    assert counts(["ngram", "suffix", "wrong"]) == counts(["wrong", "suffix", "ngram"])


def test_b1_the_same_prompt_thrice_counts_the_same_each_time() -> None:
    """B1: nothing learned from a prompt flatters its repetition, nor the next job."""
    request = make_requests(1, max_tokens=24)[0]
    requests = tuple(replace(request, request_id=f"copy{i}") for i in range(3))
    job = make_job({"trial": SpecConfig(drafter="suffix")}, requests=requests)
    worker = measurer(CostlyModel(FakeClock()))
    first, second = worker.run(job), worker.run(job)
    accepted = [t.num_accepted for t in first.timings if t.config == "trial"]
    assert len(set(accepted)) == 1 and accepted[0] > 0
    assert [t.num_accepted for t in second.timings if t.config == "trial"] == accepted


def test_groups_at_concurrency() -> None:
    result = measure(make_job({"trial": NGRAM}, num_requests=5, concurrency=2))
    assert result.status == "ok", result.reason
    assert [t.request_ids for t in result.timings if t.config == "stock"] == [
        ("r0", "r1", "r2", "r3", "r4")
    ]
    assert {record.judgement for record in result.outputs} == {"exact"}


def test_acceptance_by_position() -> None:
    job = make_job(
        {
            "all": replace(ORACLE, block_size=3),
            "two": SpecConfig(drafter="scripted", script="mixed", script_right=2, block_size=4),
            "none": replace(WRONG, block_size=2),
        },
        num_requests=1,
    )
    result = measure(job)
    (full,), (two,), (none,), (stock,) = (
        outputs_of(result, name) for name in ("all", "two", "none", "stock")
    )
    assert full.accepted_by_position == full.drafted_by_position
    assert len(full.accepted_by_position) == 3
    assert two.accepted_by_position[0] > 0 and two.accepted_by_position[2:] in ((0, 0), (0,))
    assert none.accepted_by_position == (0, 0) and none.drafted_by_position[0] > 0
    assert stock.accepted_by_position == stock.drafted_by_position == ()


def corrupt_verification(rows: RowBatch, last: torch.Tensor) -> torch.Tensor:
    """A planted fault: forwards of 2 to 6 rows, as in verification, see a wrong residual."""
    return -last if 2 <= last.shape[1] <= 6 else last


def test_a_planted_fault_is_divergent_and_stock_is_not_blamed() -> None:
    model = CostlyModel(FakeClock(), disturb=corrupt_verification)
    result = measure(make_job({"trial": ORACLE}), model)
    assert result.status == "ok", result.reason
    assert {record.judgement for record in outputs_of(result, "stock")} == {"exact"}
    worst = outputs_of(result, "trial")
    assert "divergent" in {record.judgement for record in worst}
    for record in worst:
        if record.judgement == "divergent":
            assert record.position is not None and record.emitted != record.expected
            assert record.margin is not None and record.margin > 0.0


def test_stock_is_compared_with_its_reference() -> None:
    job = make_job({"trial": NGRAM})
    clean = {r.request_id: r.token_ids for r in outputs_of(measure(job), "stock")}
    again = measure(replace(job, references=clean))
    assert {record.detail for record in again.outputs} == {""}
    changed = (*clean["r1"][:4], (clean["r1"][4] + 1) % 64, *clean["r1"][5:])
    told = measure(replace(job, references={**clean, "r1": changed}))
    record = next(r for r in outputs_of(told, "stock") if r.request_id == "r1")
    assert "differs from its reference at position 4" in record.detail
    assert record.judgement == "exact"  # forced: the reference was wrong, not stock


def test_force_all_forces_equal_outputs_too() -> None:
    job = make_job({"trial": NGRAM}, num_requests=2, margin_noise=0.0, stock_positions=100)
    lazy, forced = CostlyModel(FakeClock()), CostlyModel(FakeClock())
    first = measure(job, lazy)
    second = measure(replace(job, force_all=True), forced)
    assert forced.num_forwards == lazy.num_forwards + 4  # one forced pass an output
    assert [r.judgement for r in first.outputs] == [r.judgement for r in second.outputs]


def test_rejection_passes_the_distribution_gate_and_not_forcing() -> None:
    sampled = tuple(
        replace(request, sampling=replace(request.sampling, temperature=1.0, seed=index))
        for index, request in enumerate(make_requests(3))
    )
    trial = SpecConfig(drafter="ngram", verifier="rejection")
    result = measure(make_job({"trial": trial}, requests=sampled))
    assert result.status == "ok", result.reason
    assert {record.judgement for record in outputs_of(result, "trial")} == {"distribution"}
    assert {record.judgement for record in outputs_of(result, "stock")} == {"exact"}


def test_repeats_are_no_evidence_of_their_own() -> None:
    """Two prompts, each timed several times, are too few to give up on."""
    model = CostlyModel(FakeClock(), forward_s=0.1, row_s=1.0)
    job = make_job({"trial": WRONG}, num_requests=2, stop_early=True, repeats=4)
    result = measure(job, model)
    assert not result.stopped_early and len(result.timings) == 2 * 2 * 4


@pytest.mark.parametrize("status", ["ok", "error"])
def test_kernels_in_their_slower_form_are_reported(status: str) -> None:
    requests = make_requests(2) if status == "ok" else ()
    with use_backend("reference"):
        result = measure(make_job({}, requests=requests))
    assert result.status == status
    assert ("plain torch runs" in result.kernel_note) == (status == "ok")


def test_losing_configurations_stop_early_and_winning_ones_do_not() -> None:
    model = CostlyModel(FakeClock(), forward_s=0.1, row_s=1.0)  # rows are what costs
    slow = measure(make_job({"trial": WRONG}, num_requests=8, stop_early=True), model)
    assert slow.stopped_early and slow.status == "ok"
    assert {t.unit for t in slow.timings} == {0, 1, 2}
    assert len(outputs_of(slow, "trial")) == 3
    fast = measure(make_job({"trial": ORACLE}, num_requests=8, stop_early=True))
    assert not fast.stopped_early and {t.unit for t in fast.timings} == set(range(8))


def test_b29_out_of_memory_is_a_result_and_the_next_job_is_as_before() -> None:
    """B29: job 2 allocates too much; job 3 is job 1 again, with the same peak."""
    hoard: list[bytearray] = []

    def allocate(rows: RowBatch, last: torch.Tensor) -> torch.Tensor:
        if last.shape[1] == 9 and rows.positions[0, 0] > 0:  # a root and its eight drafts
            hoard.append(bytearray(64 * 2**20))
            if len(hoard) > 2:
                hoard.clear()
                raise MemoryError("cannot allocate")
        return last

    worker = measurer(CostlyModel(FakeClock(), disturb=allocate))
    small = make_job({"trial": NGRAM}, job_id="small")
    first = worker.run(small)
    broken = worker.run(make_job({"trial": WRONG}, job_id="greedy"))
    third = worker.run(small)
    assert (first.status, broken.status, third.status) == ("ok", "oom", "ok")
    assert "memory" in broken.reason
    assert third.timings == first.timings and third.outputs == first.outputs
    for name, peak in first.peak_memory_bytes.items():
        assert abs(third.peak_memory_bytes[name] - peak) <= 0.05 * peak


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_torch_out_of_memory_counts_as_such(error: Exception) -> None:
    def fail(rows: RowBatch, last: torch.Tensor) -> torch.Tensor:
        raise error

    assert measure(make_job({}), CostlyModel(FakeClock(), disturb=fail)).status == "oom"


def test_time_limit_keeps_whole_units() -> None:
    result = measure(make_job({"trial": NGRAM}, num_requests=6, timeout_s=90.0))
    assert result.status == "timeout" and "90 s" in result.reason
    units = [t.unit for t in result.timings]
    assert 0 < len(set(units)) < 6 and all(units.count(unit) == 2 for unit in units)
    assert {record.judgement for record in result.outputs} == {"exact"}


def test_cancelled_between_units() -> None:
    model = CostlyModel(FakeClock())
    result = measurer(model).run(
        make_job({"trial": NGRAM}), should_stop=lambda: model.num_forwards > 60
    )
    assert result.status == "cancelled" and result.timings


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (make_job({"bad": SpecConfig(drafter="nonesuch")}), "nonesuch"),
        (make_job({"bad": SpecConfig(drafter="early_exit", exit_layer=99)}), "99"),
        (make_job({}, requests=()), "no requests"),
        (make_job({}, requests=make_requests(1) * 2), "twice"),
        (make_job({}, concurrency=0), "concurrency is 0"),
        (replace(make_job({}), configs={"trial": NGRAM}), "stock"),
    ],
)
def test_bad_jobs_are_results_that_name_the_fault(job: MeasureJob, reason: str) -> None:
    result = measure(job)
    assert result.status == "error" and reason in result.reason
    assert result.refused
    assert "Traceback" not in result.reason


def test_a_fault_of_the_model_is_a_result() -> None:
    def fail(rows: RowBatch, last: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("a fault\nin two lines")

    result = measure(make_job({}), CostlyModel(FakeClock(), disturb=fail))
    assert (result.status, result.reason) == ("error", "ZeroDivisionError: a fault")
    assert not result.refused
