"""The store's verbs, one transaction each.

Reading verbs see the last committed state. Writing verbs take the database's write lock when they
start, so two processes never interleave inside one verb. Any verb may raise StoreEnvironmentError
(read-only, full, locked too long, unreachable); an unknown ``run_id`` or ``trial_id`` is
StoreInputError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from draftsmith.store import keepsakes, runs
from draftsmith.store import trials as trials_
from draftsmith.store.database import Database
from draftsmith.store.models import Measurement, Output
from draftsmith.store.records import (
    MAX_ATTEMPTS,
    AddedTrial,
    Budget,
    BundleRecord,
    Json,
    NewTrial,
    Owner,
    RunRecord,
    RunState,
    StoredOutput,
    StoredReference,
    StoredTiming,
    TrialCounts,
    TrialOutcome,
    TrialRecord,
    TrialState,
)
from draftsmith.store.rows import output_record, timing_record, trial_record

Clock = Callable[[], float]


class Repository:
    """``clock`` gives seconds since the epoch; leases and heartbeats are judged by it alone."""

    def __init__(self, database: Database, clock: Clock = time.time) -> None:
        self._database = database
        self._clock = clock

    # runs

    def open_run(
        self,
        deployment: Json,
        settings: Json,
        *,
        seed: int = 0,
        budget: Budget | None = None,
        resume: bool | str = True,
    ) -> RunRecord:
        """The run to drive. ``resume`` True: the newest unfinished run (running, interrupted or
        failed) of the same deployment, settings and seed, else a new one. False: a new one. A run's
        uuid, its beginning or ``latest``: that run; StoreInputError names the first values of the
        deployment or the settings that differ from what it was begun with. A given ``budget``
        replaces a resumed run's. Put the search space in ``settings``: a changed space is then
        another run.
        """
        with self._database.write("open a run") as session:
            return runs.open_run(session, self._clock(), deployment, settings, seed, budget, resume)

    def runs(
        self,
        *,
        state: RunState | None = None,
        deployment_fingerprint: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[RunRecord]:
        """Runs, newest first."""
        with self._database.read("list runs") as session:
            return runs.list_runs(session, state, deployment_fingerprint, limit, offset)

    def run(self, run: int | str) -> RunRecord:
        """One run by id, uuid, the beginning of one, or ``latest``."""
        with self._database.read(f"read run {run}") as session:
            return runs.run_record(runs.find_run(session, run))

    def set_stage(self, run_id: int, stage: str) -> None:
        """Note where the driver is."""
        with self._database.write(f"note the stage of run {run_id}") as session:
            row = runs.find_run(session, run_id)
            row.stage, row.updated_at = stage, self._clock()

    def finish_run(self, run_id: int, state: RunState, verdict: Json | None = None) -> RunRecord:
        """Set the state and the verdict, and give up the driver's claim."""
        with self._database.write(f"finish run {run_id}") as session:
            return runs.finish(session, self._clock(), run_id, state, verdict)

    def claim_run(self, run_id: int, owner: Owner, ttl_s: float) -> None:
        """Take or renew the driver's lock (its heartbeat). RunBusyError while another driver holds
        it; a claim that expired, or whose process on this host is gone, is taken over, and the
        trials leased by that driver (lease owner ``owner.key`` or ``owner.key/...``) go back to the
        queue at once. The state becomes running. ``this_process()`` of store/owners.py makes an
        Owner.
        """
        with self._database.write(f"claim run {run_id}") as session:
            runs.claim(session, self._clock(), run_id, owner, ttl_s)

    def rivals(self, run_id: int) -> list[RunRecord]:
        """Other runs of this run's deployment that a driver holds now: it measures at the same
        time.
        """
        with self._database.read(f"look for others beside run {run_id}") as session:
            return runs.rivals(session, self._clock(), run_id)

    # trials

    def add_trials(self, run_id: int, trials: Sequence[NewTrial]) -> list[AddedTrial]:
        """Queue configurations, in order; repeats and those over the run's trial budget are not
        added.
        """
        with self._database.write(f"add trials to run {run_id}") as session:
            row = runs.find_run(session, run_id)
            return trials_.add(session, self._clock(), row, trials)

    def lease(
        self,
        run_id: int,
        owner: str,
        ttl_s: float,
        *,
        stage: str | None = None,
        max_attempts: int | None = MAX_ATTEMPTS,
    ) -> TrialRecord | None:
        """Take the lowest-numbered trial that is queued or whose lease expired; None when there is
        none. A trial that lost ``max_attempts`` leases is failed ("lost 3 times") on the way, not
        handed out; None hands it out however often it was lost.
        """
        with self._database.write(f"lease a trial of run {run_id}") as session:
            runs.find_run(session, run_id)
            return trials_.lease(session, self._clock(), run_id, owner, ttl_s, stage, max_attempts)

    def renew(self, trial_id: int, owner: str, ttl_s: float) -> bool:
        """Extend the lease; False when ``owner`` no longer holds it (stop working on it)."""
        with self._database.write(f"renew the lease of trial {trial_id}") as session:
            return trials_.renew(session, self._clock(), trial_id, owner, ttl_s)

    def finish(self, trial_id: int, owner: str, outcome: TrialOutcome) -> bool:
        """Store the outcome, timings and outputs, all or nothing. False, and nothing stored, when
        ``owner`` does not hold the lease any more: the late result is dropped. An expired lease
        that nobody else took still counts as held.
        """
        with self._database.write(f"store the outcome of trial {trial_id}") as session:
            return trials_.finish(session, self._clock(), trial_id, owner, outcome)

    def requeue(self, trial_id: int, owner: str) -> bool:
        """Give a leased trial back unmeasured (Ctrl-C); the attempt is not counted."""
        with self._database.write(f"give trial {trial_id} back") as session:
            return trials_.requeue(session, trial_id, owner)

    def trials(
        self,
        run_id: int,
        *,
        states: Iterable[TrialState] | None = None,
        stage: str | None = None,
        rung: int | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[TrialRecord]:
        """Trials by number."""
        with self._database.read(f"list the trials of run {run_id}") as session:
            runs.find_run(session, run_id)
            query = trials_.select_trials(run_id, states, stage, rung)
            page = query.limit(limit).offset(offset)
            return [trial_record(row) for row in session.scalars(page)]

    def counts(self, run_id: int) -> TrialCounts:
        """Budgeted trials by state."""
        with self._database.read(f"count the trials of run {run_id}") as session:
            runs.find_run(session, run_id)
            return trials_.counts(session, run_id)

    def leaderboard(
        self, run_id: int, *, stage: str | None = None, rung: int | None = None, limit: int = 10
    ) -> list[TrialRecord]:
        """Done and feasible trials, best score first, lower number first among equals."""
        with self._database.read(f"rank the trials of run {run_id}") as session:
            runs.find_run(session, run_id)
            query = trials_.ranked(trials_.select_trials(run_id, None, stage, rung))
            return [trial_record(row) for row in session.scalars(query.limit(limit))]

    def timings(self, trial_id: int) -> tuple[StoredTiming, ...]:
        """Timed units in the order they were measured."""
        with self._database.read(f"read the timings of trial {trial_id}") as session:
            rows = trials_.children(session, Measurement, trial_id, Measurement.position)
            return tuple(timing_record(row) for row in rows)

    def outputs(self, trial_id: int) -> tuple[StoredOutput, ...]:
        """Outputs with verdicts in the order of the outcome."""
        with self._database.read(f"read the outputs of trial {trial_id}") as session:
            rows = trials_.children(session, Output, trial_id, Output.ordinal)
            return tuple(output_record(row) for row in rows)

    # what a run keeps

    def save_artifact(self, run_id: int, name: str, value: Any) -> None:
        """Keep a JSON value under a name, replacing what was there (baseline, cost tables, held-out
        split).
        """
        with self._database.write(f"save {name!r} of run {run_id}") as session:
            runs.find_run(session, run_id)
            keepsakes.save_artifact(session, self._clock(), run_id, name, value)

    def load_artifact(self, run_id: int, name: str) -> Any:
        """The value, or None."""
        with self._database.read(f"load {name!r} of run {run_id}") as session:
            return keepsakes.load_artifact(session, run_id, name)

    def save_references(self, run_id: int, references: Iterable[StoredReference]) -> None:
        """Keep stock's outputs; a request saved before is replaced."""
        with self._database.write(f"save the references of run {run_id}") as session:
            runs.find_run(session, run_id)
            keepsakes.save_references(session, run_id, references)

    def load_references(self, run_id: int) -> dict[str, StoredReference]:
        """Stock's outputs by request id, in the order they were first saved."""
        with self._database.read(f"load the references of run {run_id}") as session:
            return keepsakes.load_references(session, run_id)

    def add_bundle(self, run_id: int, bundle: BundleRecord) -> None:
        """Remember that a bundle was written."""
        with self._database.write(f"note a bundle of run {run_id}") as session:
            runs.find_run(session, run_id)
            keepsakes.add_bundle(session, run_id, bundle)

    def bundles(self, run_id: int) -> list[BundleRecord]:
        """Bundles of the run, oldest first."""
        with self._database.read(f"list the bundles of run {run_id}") as session:
            return keepsakes.list_bundles(session, run_id)
