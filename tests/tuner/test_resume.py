"""Killed at any call, a run resumes without losing a finished trial and without doing one twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.store.errors import RunBusyError
from tests.support.fakeworld import Killed, World
from tests.support.tuning import Bench

SMALL = {"max_trials": 5, "budget_s": 900.0, "num_tuning": 12, "num_heldout": 6}


def speed(config: SpecConfig) -> float:
    return 1.0 + 0.05 * config.block_size if config.drafter in ("suffix", "ngram") else 0.7


def jobs_of(world: World) -> Counter[tuple[str, tuple[str, ...], SpecConfig | None]]:
    """Finished jobs by kind, prompts and configuration."""
    return Counter(
        (
            "explore" if job.stop_early else "other",
            tuple(request.request_id for request in job.requests),
            job.configs.get("candidate"),
        )
        for job in world.jobs
    )


def calls_of_a_whole_run(bench: Bench) -> int:
    world = World(speed=speed)
    bench.run(world, **SMALL)
    return world.calls


@pytest.mark.parametrize("num_workers", [1, 2])
def test_b13_a_kill_at_any_call_loses_nothing_and_repeats_nothing(
    bench: Bench, num_workers: int
) -> None:
    """cases.md B13 and B31. Calls are submits and results; the kill comes before either happens, so
    every finished job was a result that the driver had not yet seen at the latest.
    """
    whole = calls_of_a_whole_run(bench)
    assert whole > 20
    step = 4 if num_workers == 1 else 7
    for kill_at in range(1, whole + 1, step):
        world = World(speed=speed, kill_at=kill_at, seed=kill_at)
        result = bench.run_killed(world, num_workers=num_workers, seed=kill_at, **SMALL)
        assert result.verdict == "winner", kill_at
        assert result.resumed or kill_at == 1
        repeated = [key for key, count in jobs_of(world).items() if count > 1]
        assert not repeated, kill_at
        trials = bench.trials(world, result.run)
        assert all(t.state in ("done", "pruned") for t in trials), kill_at
        assert len({(t.config_hash, t.stage, t.rung) for t in trials}) == len(trials)
        assert result.trials.configurations == SMALL["max_trials"], kill_at
        measured = [t for t in trials if t.summary and t.summary["status"] == "ok"]
        assert len(jobs_of(world)) == len(measured), kill_at


def test_killed_again_and_again_it_still_ends(bench: Bench) -> None:
    world = World(speed=speed, kill_at=4)
    for _ in range(40):
        try:
            result = bench.run(world, **SMALL)
            break
        except Killed:
            world.kill_at = world.calls + 6
            world.now_s += 1000.0
    assert result.verdict == "winner"
    assert all(count == 1 for count in jobs_of(world).values())


def test_b31_the_search_goes_on_where_it_was_and_does_not_repeat_itself(bench: Bench) -> None:
    """cases.md B31: five trials, a restart, five more; none of the first five comes again."""
    world = World(speed=speed)
    world.kill_at = 20
    result = bench.run_killed(world, max_trials=10, budget_s=2000.0, with_optuna=True)
    first = [t for t in bench.trials(world, result.run, "explore") if t.rung == 0]
    assert len(first) == 10
    assert len({t.config_hash for t in first}) == 10


def test_starting_points_are_queued_once_over_restarts(bench: Bench) -> None:
    import optuna

    from draftsmith.store.database import optuna_storage

    world = World(speed=speed, kill_at=12)
    result = bench.run_killed(world, with_optuna=True, max_trials=6, budget_s=900.0)
    target = optuna_storage(bench.database)
    storage = optuna.storages.RDBStorage(target.url, engine_kwargs=target.engine_kwargs)
    study = optuna.load_study(study_name=f"draftsmith {result.run}", storage=storage)
    fixed = [str(t.system_attrs["fixed_params"]) for t in study.trials if t.system_attrs]
    assert fixed and len(set(fixed)) == len(fixed)


def test_b31_a_changed_space_is_another_run(bench: Bench) -> None:
    """cases.md B31: fewer families, so a new run and a new study, not a trace."""
    world = World(speed=speed, kill_at=15)
    with pytest.raises(Killed):
        bench.run(world, **SMALL)
    world.kill_at = None
    world.now_s += 1000.0
    result = bench.run(world, drafters=("ngram", "suffix"), **SMALL)
    assert not result.resumed


def test_a_second_driver_stays_out_while_the_first_lives(bench: Bench) -> None:
    world = World(speed=speed, kill_at=15)
    with pytest.raises(Killed):
        bench.run(world, **SMALL)
    world.kill_at = None
    with pytest.raises(RunBusyError):
        bench.run(world, **SMALL)


@pytest.mark.parametrize("kill_at", [4, 6, 10, 14])
def test_a_kill_between_rounds_changes_neither_the_prompts_nor_the_reserve(
    tmp_path: Path, kill_at: int
) -> None:
    """The plan is the pilot's: a resumed driver does not cut it to what is left by then."""
    shape = {"budget_s": 240.0, "max_trials": None, "num_tuning": 48, "num_heldout": 24}
    results = []
    for name, kill in (("whole", None), ("killed", kill_at)):
        (tmp_path / name).mkdir()
        bench = Bench(tmp_path / name)
        world = World(speed=speed, stock_s=2.0, kill_at=kill)
        start = world.now_s
        results.append(bench.run_killed(world, **shape))
        dead_s = 1000.0 if kill else 0.0
        assert world.now_s - start - dead_s <= 240.0 * 1.1
        bench.close()
    whole, killed = results
    assert killed.resumed
    assert killed.prompts["heldout"] <= whole.prompts["heldout"]
    assert killed.prompts["heldout"] >= whole.prompts["heldout"] - 2  # time of the lost chunk
    assert killed.seconds_by_phase["confirm"] > 0


def test_time_spent_before_a_kill_counts(bench: Bench) -> None:
    world = World(speed=speed, noise=0.02, kill_at=18)
    start = world.now_s
    result = bench.run_killed(world, budget_s=250.0, max_trials=None)
    dead_s = 1000.0
    assert world.now_s - start - dead_s <= 250.0 * 1.15
    assert sum(result.seconds_by_phase.values()) <= 250.0 * 1.15
