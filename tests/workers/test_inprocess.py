from __future__ import annotations

import pytest

from draftsmith.workers.inprocess import InProcessExecutor
from draftsmith.workers.measure import Measurer
from tests.support.clock import FakeClock
from tests.support.measuring import NGRAM, CostlyModel, loader_of, make_job


def executor(model: CostlyModel) -> InProcessExecutor:
    return InProcessExecutor(Measurer("here", load=loader_of(model), clock=model.clock))


def test_results_in_order_and_none_when_idle() -> None:
    with executor(CostlyModel(FakeClock())) as here:
        assert here.num_workers == 1 and here.next_result(0.0) is None
        here.submit(make_job({"trial": NGRAM}, job_id="a", num_requests=1))
        here.submit(make_job({}, job_id="b", num_requests=1))
        results = [here.next_result(1.0), here.next_result(1.0)]
        assert [(r.job_id, r.status) for r in results if r] == [("a", "ok"), ("b", "ok")]
        assert here.next_result(0.0) is None


def test_cancelled_jobs_yield_a_result_each() -> None:
    with executor(CostlyModel(FakeClock())) as here:
        here.submit(make_job({}, job_id="a"))
        here.submit(make_job({}, job_id="b"))
        here.cancel_all()
        results = [here.next_result(0.0) for _ in range(3)]
        assert [r and (r.job_id, r.status) for r in results] == [
            ("a", "cancelled"), ("b", "cancelled"), None,
        ]  # fmt: skip
        here.submit(make_job({}, job_id="c", num_requests=1))
        after = here.next_result(0.0)
        assert after is not None and after.status == "ok"


def test_cancelling_while_a_job_runs_stops_it_between_units() -> None:
    model = CostlyModel(FakeClock())
    here = executor(model)

    def cancel(rows: object, last: object) -> object:
        if model.num_forwards == 60:
            here.cancel_all()
        return last

    model.disturb = cancel  # type: ignore[assignment]
    here.submit(make_job({"trial": NGRAM}, job_id="a"))
    here.submit(make_job({}, job_id="b"))
    results = {r.job_id: r.status for r in (here.next_result(0.0), here.next_result(0.0)) if r}
    assert results == {"a": "cancelled", "b": "cancelled"}
    assert here.next_result(0.0) is None


def test_an_interrupted_job_is_still_to_be_done() -> None:
    model = CostlyModel(FakeClock())
    here = executor(model)

    def interrupt(rows: object, last: object) -> object:
        model.disturb = None
        raise KeyboardInterrupt

    model.disturb = interrupt  # type: ignore[assignment]
    here.submit(make_job({}, job_id="a", num_requests=1))
    with pytest.raises(KeyboardInterrupt):
        here.next_result(0.0)
    result = here.next_result(0.0)
    assert result is not None and (result.job_id, result.status) == ("a", "ok")
