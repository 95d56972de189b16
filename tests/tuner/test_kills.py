"""A driver that dies again and again in the same job says nothing against what it measured."""

from __future__ import annotations

import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.store.records import MAX_ATTEMPTS
from tests.support.fakeworld import Killed, World
from tests.support.tuning import DEAD_AFTER_S, Bench

SMALL = {"max_trials": 3, "budget_s": 900.0, "num_tuning": 12, "num_heldout": 6}


def speed(config: SpecConfig) -> float:
    return 1.3 if config.drafter in ("suffix", "ngram") else 0.7


@pytest.mark.parametrize("stage", ["baseline", "confirm"])
def test_baseline_and_confirmation_survive_any_number_of_dead_drivers(
    bench: Bench, stage: str
) -> None:
    whole = World(speed=speed)
    bench.run(whole, **SMALL)
    world = World(speed=speed, kill_at=2 if stage == "baseline" else whole.calls)
    for _ in range(MAX_ATTEMPTS + 1):
        with pytest.raises(Killed):
            bench.run(world, **SMALL)
        world.now_s += DEAD_AFTER_S
        world.kill_at = world.calls + 2  # the same job's result: its submit comes first
    world.kill_at = None
    result = bench.run(world, **SMALL)
    assert result.resumed and result.verdict == "winner"
    [hit] = [t for t in bench.trials(world, result.run, stage) if t.attempt > 1]
    assert (hit.state, hit.attempt) == ("done", MAX_ATTEMPTS + 2)
