"""One driver's hold on one run: the claim, the clock, the jobs of a stage carried through the
store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from draftsmith.engine.job import MeasureJob
from draftsmith.store.records import NewTrial, RunRecord, TrialOutcome, TrialRecord
from draftsmith.store.repository import Repository
from draftsmith.tuner.deployment import Deployment
from draftsmith.tuner.dispatch import Dispatcher, Finished
from draftsmith.tuner.errors import TunerError
from draftsmith.tuner.material import Material
from draftsmith.tuner.outcome import KERNEL_NOTE
from draftsmith.tuner.progress import Phase, Progress
from draftsmith.tuner.stopwatch import Stopwatch

SECONDS = "seconds_by_phase"
WAIT_S = 3600.0

Build = Callable[[TrialRecord], MeasureJob]
Read = Callable[[Finished], TrialOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything that the phases share. Created by the controller once the run is claimed."""

    deployment: Deployment
    repository: Repository
    dispatcher: Dispatcher
    run: RunRecord
    watch: Stopwatch
    progress: Progress
    material: Material
    num_workers: int

    def enter(self, phase: Phase, note: str) -> None:
        """A phase begins: noted in the store, on the clock and for whoever watches."""
        self.watch.enter(phase)
        self.repository.set_stage(self.run.id, phase)
        self.save_seconds()
        self.progress.on_phase(phase, note, self.watch.left_s)

    def save_seconds(self) -> None:
        """Keep the time spent, so that a killed run's budget counts it."""
        self.repository.save_artifact(self.run.id, SECONDS, self.watch.by_phase())

    def artifact(self, name: str) -> Any:
        return self.repository.load_artifact(self.run.id, name)

    def keep(self, name: str, value: Any) -> None:
        self.repository.save_artifact(self.run.id, name, value)

    def kernel_notes(self) -> list[str]:
        """What the run's workers said of kernels that ran in a slower form, each once."""
        summaries = (trial.summary or {} for trial in self.repository.trials(self.run.id))
        notes = (summary.get(KERNEL_NOTE) for summary in summaries)
        return list(dict.fromkeys(note for note in notes if note))

    def job_id(self, trial: TrialRecord) -> str:
        """Unique over attempts: an answer to a lost attempt is never taken for this one's."""
        return f"{self.run.uuid}/{trial.number}/{trial.attempt}"

    def carry_out(self, stage: str, trials: Sequence[NewTrial], build: Build, read: Read) -> None:
        """Run every trial of a stage that must succeed as a whole (baseline, confirmation), those
        left by an earlier driver included, however often drivers died under them: that would end
        the run for good. ``read`` may raise: the trial is given back and nothing is lost.
        """
        self.repository.add_trials(self.run.id, trials)
        while True:
            while self.dispatcher.has_idle:
                trial = self.dispatcher.lease(stage, max_attempts=None)
                if trial is None:
                    break
                self.dispatcher.start(trial, build(trial))
            finished = self.dispatcher.wait(WAIT_S)
            if finished is None:
                if self.dispatcher.num_running:
                    continue
                break
            try:
                outcome = read(finished)
            except TunerError:
                self.dispatcher.give_back(finished.trial)
                raise
            self.dispatcher.finish(finished.trial, outcome)
            self.save_seconds()

    def stop(self) -> None:
        """Cancel what runs and give its trials back, unmeasured and uncounted."""
        for finished in self.dispatcher.cancel():
            self.dispatcher.give_back(finished.trial)
        self.save_seconds()
