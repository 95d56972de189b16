"""A tuning run in the scripted world: one object that starts, kills and resumes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from draftsmith.store.database import optuna_storage
from draftsmith.store.migrations.upgrade import open_database
from draftsmith.store.records import TrialRecord
from draftsmith.store.repository import Repository
from draftsmith.tuner.controller import RunOptions, tune
from draftsmith.tuner.deployment import Effort
from draftsmith.tuner.progress import TrialNews
from draftsmith.tuner.result import TuneResult
from tests.support.fakeworld import FakeExecutor, Killed, World, make_deployment, make_material

DEAD_AFTER_S = 1000.0  # longer than a driver's claim lives


class Recorder:
    """Keeps what progress was told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.news: list[TrialNews] = []
        self.seconds_left: list[float] = []

    def on_phase(self, phase: str, note: str, seconds_left: float) -> None:
        del note
        self.phases.append(phase)
        self.seconds_left.append(seconds_left)

    def on_trial(self, news: TrialNews, seconds_left: float) -> None:
        self.news.append(news)
        self.seconds_left.append(seconds_left)


class Bench:
    """One store on disk, and runs of one deployment in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = open_database(folder / "store.db")
        self.progress = Recorder()
        self.clock_s = 0.0

    def run(
        self,
        world: World,
        *,
        budget_s: float = 600.0,
        max_trials: int | None = 12,
        num_workers: int = 1,
        concurrency: int = 1,
        num_tuning: int = 16,
        num_heldout: int = 12,
        turns: int = 1,
        seed: int = 7,
        finalists: int = 1,
        with_optuna: bool = False,
        **options: Any,
    ) -> TuneResult:
        effort = Effort(budget_s=budget_s, max_trials=max_trials, seed=seed, finalists=finalists)
        deployment = make_deployment(self.folder, effort=effort, concurrency=concurrency)
        drafters = options.pop("drafters", None)
        if drafters:
            deployment = replace(deployment, drafters=drafters)
        executor = options.pop("executor", None) or FakeExecutor(world, num_workers)
        return tune(
            deployment,
            Repository(self.database, clock=world.now),
            executor,
            RunOptions(
                bundle_root=self.folder / "bundles",
                material=make_material(
                    deployment, num_tuning=num_tuning, num_heldout=num_heldout, turns=turns
                ),
                optuna=optuna_storage(self.database) if with_optuna else None,
                clock=world.now,
                **options,
            ),
            self.progress,
        )

    def run_killed(self, world: World, **options: Any) -> TuneResult:
        """As ``run``; killed as the world says, then resumed after the claim has expired."""
        try:
            return self.run(world, **options)
        except Killed:
            world.kill_at = None
            world.now_s += DEAD_AFTER_S
            return self.run(world, **options)

    def trials(self, world: World, run: str, stage: str | None = None) -> list[TrialRecord]:
        repository = Repository(self.database, clock=world.now)
        return repository.trials(repository.run(run).id, stage=stage)

    def close(self) -> None:
        self.database.close()
