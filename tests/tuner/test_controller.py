"""The loop in the scripted world: what it finds, what it refuses, what it spends."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.store.bundle import read_bundle
from draftsmith.tuner.errors import (
    BudgetError,
    TunerEnvironmentError,
    TunerInputError,
    TunerInterrupted,
)
from tests.support.fakeworld import FakeExecutor, World, stock_output
from tests.support.tuning import Bench


def suffix_pays(config: SpecConfig) -> float:
    """Suffix with long blocks wins, everything else loses a little."""
    if config.drafter == "suffix":
        return 1.2 + 0.02 * min(config.block_size, 20)
    return 0.9


def test_the_best_configuration_wins_and_is_confirmed_on_other_prompts(bench: Bench) -> None:
    world = World(speed=suffix_pays, noise=0.03)
    result = bench.run(world)
    assert result.verdict == "winner"
    assert result.config["drafter"] == "suffix"
    assert result.config["block_size"] >= 8
    assert result.ratio is not None and result.ratio.low > 1.0
    tuning = {r.request_id for job in world.jobs if job.stop_early for r in job.requests}
    confirmed = {
        r.request_id
        for job in world.jobs
        if job.force_all and len(job.configs) > 1
        for r in job.requests
    }
    assert confirmed and not tuning & confirmed
    assert bench.progress.phases[0] == "baseline" and bench.progress.phases[-1] == "export"


def test_the_bundle_holds_the_verdict_and_the_outputs(bench: Bench) -> None:
    result = bench.run(World(speed=suffix_pays))
    assert result.bundle_path is not None
    bundle = read_bundle(result.bundle_path)
    assert bundle.parts.config == result.config
    assert bundle.parts.evidence["verdict"] == "winner"
    assert len(bundle.parts.outputs) == result.prompts["heldout"]
    first = bundle.parts.outputs[0]
    assert set(first) >= {"request_id", "prompt_ids", "token_ids", "stop_reason", "sampling"}
    assert result.next_command == f"draftsmith verify {result.bundle_path}"


def test_b20_lossless_and_slow_beats_lossy_and_fast(bench: Bench) -> None:
    """cases.md B20: five times faster and lossy, against 1.2 times and lossless."""
    world = World(
        speed=lambda config: 5.0 if config.drafter == "ngram" else 1.2,
        lossy=lambda config: config.drafter == "ngram",
    )
    result = bench.run(world)
    assert result.verdict == "winner"
    assert result.config["drafter"] != "ngram"
    assert result.ratio is not None and result.ratio.ratio == pytest.approx(1.2)
    lossy = [t for t in bench.trials(world, result.run) if t.config["drafter"] == "ngram"]
    assert lossy and not any(t.feasible for t in lossy)
    assert all("lossy" in t.reason for t in lossy)
    assert not any(row["feasible"] for row in result.top if row["config"]["drafter"] == "ngram")


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "", -1.0, 0.0])
def test_b20_a_time_that_is_no_number_fails_its_trial_and_the_search_goes_on(
    bench: Bench, value: object
) -> None:
    """cases.md B20: such a trial is failed with its reason, never the best."""
    world = World(
        speed=suffix_pays,
        seconds=lambda config, seconds: value if config.drafter == "ngram" else seconds,
    )
    result = bench.run(world)
    assert result.config["drafter"] == "suffix"
    failed = [t for t in bench.trials(world, result.run) if t.config["drafter"] == "ngram"]
    assert failed and all(t.state == "failed" and "seconds" in t.reason for t in failed)


def test_nothing_valid_recommends_off(bench: Bench) -> None:
    world = World(speed=lambda config: 3.0, lossy=lambda config: True)
    result = bench.run(world)
    assert result.verdict == "off"
    assert "no valid configuration" in result.summary
    assert result.config == {"drafter": "none"}
    assert not world.measured("confirm")


def test_nothing_faster_recommends_off_without_confirming(bench: Bench) -> None:
    world = World(speed=lambda config: 0.8, noise=0.02)
    result = bench.run(world)
    assert result.verdict == "off"
    assert result.config == {"drafter": "none"}
    assert not world.measured("confirm")
    assert result.bundle_path is not None
    bundle = read_bundle(result.bundle_path)
    request = bundle.parts.outputs[0]
    assert len(request["token_ids"]) > 0 and bundle.parts.config == {"drafter": "none"}


def test_b12_every_job_failing_ends_and_says_so(bench: Bench) -> None:
    """cases.md B12: all failed, the search ends at its budget of trials and says why."""
    world = World(speed=lambda config: 2.0, status=lambda config: "oom")
    result = bench.run(world, max_trials=6)
    assert result.verdict == "inconclusive"
    assert "oom" in result.summary
    assert result.trials.failed == 6 and result.trials.configurations == 6


def test_b12_failed_trials_count_like_others(bench: Bench) -> None:
    """cases.md B12: three of ten fail; ten are measured in all."""
    world = World(speed=suffix_pays, status=lambda c: "died" if c.drafter == "recycle" else "ok")
    result = bench.run(world, budget_s=3000, max_trials=10)
    assert result.trials.configurations == 10
    assert 0 < result.trials.failed < 10


@pytest.mark.parametrize("num_workers", [1, 4])
def test_the_trial_budget_is_exact_with_several_workers(bench: Bench, num_workers: int) -> None:
    world = World(speed=suffix_pays, noise=0.05)
    result = bench.run(world, budget_s=5000, max_trials=10, num_workers=num_workers)
    assert result.trials.configurations == 10
    first_rung = [t for t in bench.trials(world, result.run, "explore") if t.rung == 0]
    assert len(first_rung) == 10 and all(t.attempt == 1 for t in first_rung)


def test_b12_a_finished_budget_resumes_to_no_further_trial(bench: Bench) -> None:
    """cases.md B12: budget 10, done 10, resume runs 0; the verdict is the same."""
    world = World(speed=suffix_pays, noise=0.05)
    first = bench.run(world, budget_s=5000, max_trials=10)
    jobs = len(world.jobs)
    again = bench.run(world, budget_s=5000, max_trials=10, resume=first.run)
    assert len(world.jobs) == jobs
    assert again.verdict == first.verdict and again.config == first.config
    assert again.trials.configurations == 10


def test_no_configuration_is_measured_twice(bench: Bench) -> None:
    world = World(speed=suffix_pays, noise=0.02)
    result = bench.run(world, budget_s=3000, max_trials=20)
    trials = bench.trials(world, result.run, "explore")
    assert len({(t.config_hash, t.rung) for t in trials}) == len(trials)
    requests = [
        (job.configs["candidate"], r.request_id)
        for job in world.jobs
        if job.stop_early
        for r in job.requests
    ]
    assert len(set(requests)) == len(requests)


def test_the_budget_holds_and_the_confirmation_keeps_its_share(bench: Bench) -> None:
    world = World(speed=suffix_pays, noise=0.05)
    start = world.now_s
    result = bench.run(world, budget_s=300, max_trials=None)
    assert world.now_s - start <= 300 * 1.05
    assert sum(result.seconds_by_phase.values()) == pytest.approx(world.now_s - start, abs=1.0)
    assert result.seconds_by_phase["confirm"] > 0
    assert result.verdict == "winner"


@pytest.mark.parametrize(
    ("num_workers", "turns", "concurrency", "stock_s"),
    [(1, 1, 1, 1.0), (2, 1, 1, 1.0), (1, 2, 1, 1.0), (2, 2, 1, 1.0), (4, 1, 4, 3.0)],
)
def test_a_machine_that_slows_down_gets_fewer_prompts_and_keeps_the_budget(
    bench: Bench, num_workers: int, turns: int, concurrency: int, stock_s: float
) -> None:
    """Stock takes six times longer as soon as the pilot has set the plan."""
    pilot_s = 4 * stock_s
    world = World(
        speed=suffix_pays,
        stock_s=stock_s,
        pace=lambda now: 6.0 if now > 1000 + pilot_s else 1.0,
    )
    shape = {"num_tuning": 120, "num_heldout": 120, "num_workers": num_workers}
    shape |= {"turns": turns, "concurrency": concurrency}
    start = world.now_s
    result = bench.run(world, budget_s=500, max_trials=None, **shape)
    assert world.now_s - start <= 500 * 1.05
    assert 4 <= result.prompts["heldout"] < 120 * turns
    assert result.seconds_by_phase["explore"] > 0 and result.seconds_by_phase["confirm"] > 0
    again = bench.run(world, budget_s=500, max_trials=None, resume=result.run, **shape)
    assert again.prompts == result.prompts and again.verdict == result.verdict


def test_what_is_fastest_gets_to_the_top_before_something_new_takes_its_time(bench: Bench) -> None:
    """Every new configuration is faster than all before. What is measured on all prompts in the end
    is the last or the last but one: the very last may be tried in a rest that holds no climb.
    """
    seen: list[SpecConfig] = []

    def speed(config: SpecConfig) -> float:
        if config.drafter == "none":
            return 1.0
        if config not in seen:
            seen.append(config)
        return 1.05 + 0.02 * seen.index(config)

    result = bench.run(World(speed=speed), budget_s=500, max_trials=None)
    arrived = [row for row in result.top if row["num_prompts"] == result.prompts["tuning"]]
    assert len(seen) > 10
    assert max(row["ratio"] for row in arrived) >= speed(seen[-2]) - 1e-9


def test_every_configuration_is_counted_once_by_how_it_ended(bench: Bench) -> None:
    world = World(
        speed=lambda config: 1.2 if config.drafter == "suffix" else 0.5,
        status=lambda config: "oom" if config.drafter == "recycle" else "ok",
    )
    result = bench.run(world, max_trials=12)
    count = result.trials
    assert count.done + count.failed + count.unfinished == count.configurations == 12
    assert count.failed > 0 and count.stopped_early > 0


def test_b29_a_hanging_trial_is_stopped_and_the_next_one_runs(bench: Bench) -> None:
    """cases.md B29: recorded as a timeout, the search goes on and keeps its limit."""
    world = World(
        speed=suffix_pays,
        status=lambda config: "hang" if config.drafter == "ngram" else "ok",
    )
    start = world.now_s
    result = bench.run(world, budget_s=600)
    assert result.verdict == "winner"
    assert world.now_s - start <= 600 * 1.05
    hung = [t for t in bench.trials(world, result.run) if t.config["drafter"] == "ngram"]
    assert hung and all("timeout" in t.reason or "search time" in t.reason for t in hung)


class Deaf(FakeExecutor):
    """Never answers a trial until it is cancelled."""

    def next_result(self, timeout_s: float | None):  # type: ignore[no-untyped-def]
        running = [item for item in self._running if item[1].stop_early]
        if running and running[0][2].status == "ok":
            self._world.now_s += timeout_s or 0.0
            return None
        return super().next_result(timeout_s)


def test_b29_the_search_limit_holds_while_a_trial_is_running(bench: Bench) -> None:
    """cases.md B29: a worker that never answers cannot spend the confirmation's time."""
    world = World(speed=suffix_pays)
    start = world.now_s
    result = bench.run(world, budget_s=300, executor=Deaf(world))
    assert world.now_s - start <= 300
    assert result.verdict == "inconclusive"
    trials = bench.trials(world, result.run, "explore")
    assert [t.state for t in trials] == ["pruned"]
    assert trials[0].reason == "the search time was up"


def test_a_budget_that_holds_nothing_names_the_minimum(bench: Bench) -> None:
    with pytest.raises(BudgetError, match=r"needs about .*a prompt here.*--budget"):
        bench.run(World(speed=suffix_pays, stock_s=10.0), budget_s=60)


def test_more_budget_resumes_the_refused_run(bench: Bench) -> None:
    world = World(speed=suffix_pays, stock_s=5.0)
    with pytest.raises(BudgetError):
        bench.run(world, budget_s=60)
    pilot = len(world.jobs)
    result = bench.run(world, budget_s=2000)
    assert result.resumed and result.verdict == "winner"
    references = [r.request_id for j in world.jobs if len(j.configs) == 1 for r in j.requests]
    assert pilot == 1 and len(set(references)) == len(references)


def test_stock_that_cannot_be_measured_is_an_environment_error(bench: Bench) -> None:
    class Broken(FakeExecutor):
        def submit(self, job):  # type: ignore[no-untyped-def]
            from draftsmith.engine.job import MeasureResult

            answer = MeasureResult(job_id=job.job_id, status="died", reason="the worker is gone")
            self._running.append((self._world.now_s, job, answer))

    world = World(speed=suffix_pays)
    with pytest.raises(TunerEnvironmentError, match="the worker is gone"):
        bench.run(world, executor=Broken(world))
    assert bench.run(world).verdict == "winner"


def test_a_target_that_is_refused_is_the_users_to_mend(bench: Bench) -> None:
    """Exit code 2, not 3, and the run goes on once it is mended."""

    class Refusing(FakeExecutor):
        def submit(self, job):  # type: ignore[no-untyped-def]
            from draftsmith.engine.job import MeasureResult

            answer = MeasureResult(
                job_id=job.job_id, status="error", reason="the file is cut off", refused=True
            )
            self._running.append((self._world.now_s, job, answer))

    world = World(speed=suffix_pays)
    with pytest.raises(TunerInputError, match="the file is cut off"):
        bench.run(world, executor=Refusing(world))
    assert bench.run(world).resumed


def test_ctrl_c_gives_trials_back_and_resumes(bench: Bench) -> None:
    class Interrupted(FakeExecutor):
        def next_result(self, timeout_s):  # type: ignore[no-untyped-def]
            if sum(job.stop_early for job in self._world.jobs) == 3 and not stopped:
                stopped.append(True)
                raise KeyboardInterrupt
            return super().next_result(timeout_s)

    stopped: list[bool] = []
    world = World(speed=suffix_pays)
    with pytest.raises(TunerInterrupted, match="resumes"):
        bench.run(world, max_trials=8, executor=Interrupted(world))
    result = bench.run(world, max_trials=8)
    assert result.resumed and result.trials.configurations == 8
    trials = bench.trials(world, result.run, "explore")
    assert all(t.state in ("done", "pruned") for t in trials)
    assert len({(t.config_hash, t.rung) for t in trials}) == len(trials)


def test_several_turns_follow_stocks_own_answers(bench: Bench) -> None:
    world = World(speed=suffix_pays)
    result = bench.run(world, turns=2, budget_s=900)
    requests = {r.request_id: r for job in world.jobs for r in job.requests}
    second = requests["t0#t2"]
    answer = " ".join(str(token) for token in stock_output(requests["t0"]))
    as_ids = [ord(letter) % 60 for letter in answer]
    text = list(second.prompt_ids)
    assert any(text[i : i + len(as_ids)] == as_ids for i in range(len(text)))
    assert result.prompts["tuning"] % 2 == 0


def test_groups_run_together_at_concurrency(bench: Bench) -> None:
    world = World(speed=suffix_pays)
    result = bench.run(world, concurrency=4, num_tuning=24, num_heldout=12)
    assert result.verdict == "winner"
    trials = [job for job in world.jobs if job.stop_early]
    assert all(job.concurrency == 4 and len(job.requests) >= 8 for job in trials[:1])


def test_the_study_lives_in_the_store_and_is_dashboard_ready(bench: Bench) -> None:
    import optuna

    from draftsmith.store.database import optuna_storage

    world = World(speed=suffix_pays)
    result = bench.run(world, with_optuna=True, max_trials=12, budget_s=2000)
    target = optuna_storage(bench.database)
    storage = optuna.storages.RDBStorage(target.url, engine_kwargs=target.engine_kwargs)
    study = optuna.load_study(study_name=f"draftsmith {result.run}", storage=storage)
    states = {trial.state.name for trial in study.trials}
    assert len(study.trials) >= 12 and "RUNNING" not in states
    assert study.best_trial.params["drafter"] == "suffix"


def test_an_incumbent_stays_unless_shown_slower(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "vllm.json"
    file.write_text('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}')
    world = World(speed=lambda c: 1.5 if c.drafter == "ngram" else 1.1, noise=0.01)
    result = bench.run(world, incumbent=file)
    assert result.verdict == "incumbent stays"
    assert result.config["drafter"] == "ngram"
    assert result.incumbent is not None and "ngram" in result.incumbent["name"]
    assert result.ratio is not None and result.ratio.ratio == pytest.approx(1.5, rel=0.05)
    assert result.lossless.num_outputs == result.prompts["heldout"]
    assert result.tokens_per_s == pytest.approx(1.5 * (result.stock_tokens_per_s or 0), rel=0.05)


def test_an_incumbent_is_replaced_when_the_interval_says_so(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "vllm.json"
    file.write_text('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}')
    world = World(speed=suffix_pays, noise=0.01)
    result = bench.run(world, incumbent=file)
    assert result.verdict == "winner" and result.config["drafter"] == "suffix"
    against = {(item.config_text, item.against): item for item in result.comparisons}
    direct = next(item for key, item in against.items() if key[1] == "incumbent")
    assert direct.interval.low > 1.0
    measured = [t for t in bench.trials(world, result.run, "explore") if t.proposer == "incumbent"]
    assert len(measured) == 1 and not measured[0].budgeted
