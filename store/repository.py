"""The store's verbs, one transaction each.

Reading verbs see the last committed state. Writing verbs take the database's write lock when they start, so
two processes never interleave inside one verb. Any verb may raise StoreEnvironmentError (read-only, full,
locked too long, unreachable); an unknown ``run_id`` or ``trial_id`` is StoreInputError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from draftsmith.store.database import Database
from draftsmith.store.records import (
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
        """The run to drive. ``resume`` True: the newest unfinished run (running, interrupted or failed) of
        the same deployment, settings and seed, else a new one. False: a new one. A run's uuid: that run;
        StoreInputError names the first deployment or settings keys that differ from what it was begun with.
        A given ``budget`` replaces a resumed run's. Put the search space in ``settings``: a changed space
        is then another run.
        """
        raise NotImplementedError

    def runs(
        self,
        *,
        state: RunState | None = None,
        deployment_fingerprint: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[RunRecord]:
        """Runs, newest first."""
        raise NotImplementedError

    def run(self, run: int | str) -> RunRecord:
        """One run by id or uuid."""
        raise NotImplementedError

    def set_stage(self, run_id: int, stage: str) -> None:
        """Note where the driver is."""
        raise NotImplementedError

    def finish_run(self, run_id: int, state: RunState, verdict: Json | None = None) -> RunRecord:
        """Set the state and the verdict, and give up the driver's claim."""
        raise NotImplementedError

    def claim_run(self, run_id: int, owner: Owner, ttl_s: float) -> None:
        """Take or renew the driver's lock (its heartbeat). RunBusyError while another driver holds it;
        a claim that expired, or whose process on this host is gone, is taken over, and the trials leased
        by that driver (lease owner ``owner.key`` or ``owner.key/...``) go back to the queue at once.
        The state becomes running. ``this_process()`` of store/owners.py makes an Owner.
        """
        raise NotImplementedError

    # trials

    def add_trials(self, run_id: int, trials: Sequence[NewTrial]) -> list[AddedTrial]:
        """Queue configurations, in order; repeats and those over the run's trial budget are not added."""
        raise NotImplementedError

    def lease(
        self, run_id: int, owner: str, ttl_s: float, *, stage: str | None = None
    ) -> TrialRecord | None:
        """Take the lowest-numbered trial that is queued or whose lease expired; None when there is none.
        A trial that lost MAX_ATTEMPTS leases is failed ("lost 3 times") on the way, not handed out.
        """
        raise NotImplementedError

    def renew(self, trial_id: int, owner: str, ttl_s: float) -> bool:
        """Extend the lease; False when ``owner`` no longer holds it (stop working on it)."""
        raise NotImplementedError

    def finish(self, trial_id: int, owner: str, outcome: TrialOutcome) -> bool:
        """Store the outcome, timings and outputs, all or nothing. False, and nothing stored, when ``owner``
        does not hold the lease any more: the late result is dropped. An expired lease that nobody else
        took still counts as held.
        """
        raise NotImplementedError

    def requeue(self, trial_id: int, owner: str) -> bool:
        """Give a leased trial back unmeasured (Ctrl-C); the attempt is not counted."""
        raise NotImplementedError

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
        raise NotImplementedError

    def counts(self, run_id: int) -> TrialCounts:
        """Budgeted trials by state."""
        raise NotImplementedError

    def leaderboard(
        self, run_id: int, *, stage: str | None = None, rung: int | None = None, limit: int = 10
    ) -> list[TrialRecord]:
        """Done and feasible trials, best score first, lower number first among equals."""
        raise NotImplementedError

    def timings(self, trial_id: int) -> tuple[StoredTiming, ...]:
        """Timed units in the order they were measured."""
        raise NotImplementedError

    def outputs(self, trial_id: int) -> tuple[StoredOutput, ...]:
        """Outputs with verdicts in the order of the outcome."""
        raise NotImplementedError

    # what a run keeps

    def save_artifact(self, run_id: int, name: str, value: Any) -> None:
        """Keep a JSON value under a name, replacing what was there (baseline, cost tables, held-out split)."""
        raise NotImplementedError

    def load_artifact(self, run_id: int, name: str) -> Any:
        """The value, or None."""
        raise NotImplementedError

    def save_references(self, run_id: int, references: Iterable[StoredReference]) -> None:
        """Keep stock's outputs; a request saved before is replaced."""
        raise NotImplementedError

    def load_references(self, run_id: int) -> dict[str, StoredReference]:
        """Stock's outputs by request id, in the order they were first saved."""
        raise NotImplementedError

    def add_bundle(self, run_id: int, bundle: BundleRecord) -> None:
        """Remember that a bundle was written."""
        raise NotImplementedError

    def bundles(self, run_id: int) -> list[BundleRecord]:
        """Bundles of the run, oldest first."""
        raise NotImplementedError
