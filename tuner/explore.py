"""Steps 7 and 8: measure what the agents propose, more prompts for those that do well, and gate
each.

One loop: take the results that came in, then give every idle worker a job. A configuration that
shows promise climbs before anything new is tried, and time is kept for the fastest one's way to the
top. Once there is nothing new, those climb that may still prove faster. Nothing starts that cannot
end within the search time, and when that time is up, what still runs is stopped: the confirmation's
share of the budget is never spent here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from draftsmith.engine.job import STOCK, MeasureJob
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.store.records import NewTrial, TrialOutcome, TrialRecord
from draftsmith.tuner.agents.agent import Agent, Lesson, Proposal, View
from draftsmith.tuner.allotment import JUDGING, START_S, repeats_of
from draftsmith.tuner.baseline import OFF, Baseline
from draftsmith.tuner.dispatch import Finished
from draftsmith.tuner.evidence import BadMeasurementError
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.ladder import (
    Climber,
    contender,
    fastest_below_the_top,
    next_to_climb,
    rung_slices,
)
from draftsmith.tuner.objective import Score, score
from draftsmith.tuner.outcome import CANDIDATE, SEARCH_OVER, read_result, read_stored, to_outcome
from draftsmith.tuner.progress import TrialNews
from draftsmith.tuner.session import Session
from draftsmith.tuner.space import config_json, validate

STAGE = "explore"
PATIENCE = 4.0  # a job may take this many times what it should before it is stopped
LEAST_TIMEOUT_S = 30.0
SETTLING = 0.3  # how fast the cost of jobs follows what was measured


class Explorer:
    """The search of one run. After ``run`` its ``climbers`` hold every configuration with its
    evidence.
    """

    def __init__(
        self,
        session: Session,
        baseline: Baseline,
        facts: SpaceFacts,
        agents: Sequence[Agent],
        incumbent: SpecConfig | None = None,
    ) -> None:
        self._session = session
        self._baseline = baseline
        self._facts = facts
        self._agents = tuple(dict.fromkeys(agents))
        self._turns = deque(agents)  # in this order; who is in it twice has two
        self._incumbent = incumbent
        self._rungs = rung_slices(len(baseline.tuning), session.deployment.regime.concurrency)
        stock_s = baseline.seconds_of(baseline.tuning) / len(baseline.tuning)
        self._repeats = repeats_of(stock_s, session.deployment.regime.concurrency)
        self._cost = 2 * (self._repeats + JUDGING)  # a job in seconds of stock
        self.climbers: dict[SpecConfig, Climber] = {}

    @property
    def seconds_left(self) -> float:
        """Of the search: the confirmation's reserve is not in it."""
        return self._session.watch.left_s - self._baseline.confirm_s

    def run(self) -> None:
        """Search until the time or the trials are used up, or nothing is left to try."""
        if self._incumbent is not None:
            self._queue([Proposal(config=self._incumbent, proposer="incumbent", why="runs today")])
        dispatcher = self._session.dispatcher
        while self.seconds_left > 0:
            self._fill()
            if not dispatcher.num_running:
                break
            finished = dispatcher.wait(self.seconds_left)
            if finished is not None:
                self._take(finished)
        self._close()

    def _fill(self) -> None:
        """Give idle workers jobs: queued trials first, then climbers, then new proposals."""
        session = self._session
        while session.dispatcher.has_idle:
            trial = session.dispatcher.lease(STAGE)
            if trial is None:
                if not self._queue_next():
                    return
                continue
            climber = self._climber(trial)
            requests = self._requests(trial.rung)
            if climber.failed or not self._fits(requests):
                reason = climber.failed or SEARCH_OVER
                session.dispatcher.finish(trial, TrialOutcome(state="pruned", reason=reason))
                _give_up(climber, trial, reason)
                continue
            climber.busy = True
            session.dispatcher.start(trial, self._job(trial, climber.config, requests))

    def _queue_next(self) -> bool:
        """Queue one more trial; False when there is none that fits. In this order: who shows
        promise, something new that could still reach the top, who may still prove faster, and
        something new all the same where nobody else has a use for the time.
        """
        everyone, top = self.climbers.values(), len(self._rungs)
        climber = next_to_climb(everyone, top)
        if climber is not None and self._affords(climber):
            return self._promote(climber)
        first_s, left_s = self._expected_s(self._requests(0)), self.seconds_left
        if first_s + self._climb_s(1) <= left_s and self._propose():
            return True
        climber = fastest_below_the_top(everyone, top, idle=True) or contender(everyone, top)
        if climber is not None and self._fits(self._requests(climber.rung + 1)):
            return self._promote(climber)
        return first_s <= left_s and self._propose()

    def _propose(self) -> bool:
        """Queue what the next agent with an idea proposes; False when the trials are used up or
        nobody has one.
        """
        session = self._session
        if session.repository.counts(session.run.id).remaining(session.run.budget) == 0:
            return False
        view = View(known=list(self.climbers), seconds_left=self.seconds_left)
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            proposals = self._turns[-1].propose(view, 1)
            if proposals:
                return self._queue(proposals)
        return False

    def _promote(self, climber: Climber) -> bool:
        why = f"rung {climber.rung}: {climber.ratio:.2f}x, up to {climber.high:.2f}x"
        proposal = Proposal(config=climber.config, proposer="ladder", why=why)
        return self._queue([proposal], rung=climber.rung + 1)

    def _affords(self, climber: Climber) -> bool:
        """Whether the climber's next rung leaves the time that the fastest one below the top needs
        to get there. Nothing is kept for a climb that cannot end in time whatever is done.
        """
        left_s = self.seconds_left
        own_s = self._expected_s(self._requests(climber.rung + 1))
        fastest = fastest_below_the_top(self.climbers.values(), len(self._rungs))
        if fastest is None or fastest is climber or self._climb_s(fastest.rung + 1) > left_s:
            return own_s <= left_s
        return own_s + self._climb_s(fastest.rung + (2 if fastest.busy else 1)) <= left_s

    def _climb_s(self, rung: int) -> float:
        """Seconds of the rungs from ``rung`` to the top."""
        rungs = range(rung, len(self._rungs))
        return sum(self._expected_s(self._requests(index)) for index in rungs)

    def _queue(self, proposals: Sequence[Proposal], rung: int = 0) -> bool:
        session = self._session
        added = session.repository.add_trials(
            session.run.id,
            [
                NewTrial(
                    config=config_json(proposal.config),
                    stage=STAGE,
                    rung=rung,
                    proposer=proposal.proposer,
                    why=proposal.why,
                    optuna_number=proposal.optuna_number,
                    budgeted=rung == 0 and proposal.config != self._incumbent,
                )
                for proposal in proposals
            ],
        )
        return any(answer.status == "added" for answer in added)

    def _take(self, finished: Finished) -> None:
        trial, result = finished.trial, finished.result
        climber = self._climber(trial)
        climber.busy = False
        if result.status in ("timeout", "cancelled") and self.seconds_left <= 0:
            outcome = TrialOutcome(state="pruned", reason=SEARCH_OVER)
            if self._session.dispatcher.finish(trial, outcome):
                _give_up(climber, trial, SEARCH_OVER)
            return
        reading = read_result(result, self._baseline.stock)
        failure, judged = reading.failure, None
        evidence = climber.evidence
        if reading.evidence is not None:
            try:
                evidence = climber.evidence + reading.evidence
                judged = score(evidence, self._session.deployment.objective)
            except BadMeasurementError as error:
                failure = str(error)
        outcome = to_outcome(
            result, score=judged, failure=failure, stopped_early=reading.stopped_early
        )
        if not self._session.dispatcher.finish(trial, outcome):
            return
        self._session.save_seconds()
        if judged is None:
            climber.failed = failure
        else:
            climber.evidence, climber.score, climber.rung = evidence, judged, trial.rung
            climber.stopped = reading.stopped_early
            if not reading.stopped_early:
                self._learn_cost(finished.seconds, self._requests(trial.rung))
        self._teach(trial, climber)
        self._tell(trial, climber, outcome)

    def restore(self) -> None:
        """Climbers, evidence and lessons from what earlier drivers of this run stored."""
        session = self._session
        for trial in session.repository.trials(session.run.id, stage=STAGE):
            climber = self._climber(trial)
            if trial.state == "failed":
                climber.failed = trial.reason or "failed"
            elif trial.state == "pruned" and not (trial.summary or {}).get("stopped_early"):
                _give_up(climber, trial, trial.reason)
            elif trial.state in ("done", "pruned"):
                evidence = read_stored(session.repository, trial, self._baseline.stock)
                climber.evidence = climber.evidence + evidence
                climber.score = score(climber.evidence, session.deployment.objective)
                climber.rung = max(climber.rung, trial.rung)
                climber.stopped = trial.state == "pruned"
            else:
                continue
            self._teach(trial, climber)

    def _close(self) -> None:
        """The search is over: stop what runs, and leave no trial open."""
        dispatcher = self._session.dispatcher
        for finished in dispatcher.cancel():
            if finished.result.status == "cancelled":
                outcome = TrialOutcome(state="pruned", reason=SEARCH_OVER)
                dispatcher.finish(finished.trial, outcome)
                climber = self._climber(finished.trial)
                climber.busy = False
                _give_up(climber, finished.trial, SEARCH_OVER)
            else:
                self._take(finished)
        while (trial := dispatcher.lease(STAGE)) is not None:
            dispatcher.finish(trial, TrialOutcome(state="pruned", reason=SEARCH_OVER))

    def _climber(self, trial: TrialRecord) -> Climber:
        config = validate(trial.config)
        if config not in self.climbers:
            self.climbers[config] = Climber(config=config, pinned=config == self._incumbent)
        return self.climbers[config]

    def _teach(self, trial: TrialRecord, climber: Climber) -> None:
        if trial.rung > 0:
            return
        judged: Score | None = climber.score
        lesson = Lesson(
            config=climber.config,
            optuna_number=trial.optuna_number,
            ratio=climber.ratio if climber.feasible else None,
            reason=climber.failed or (judged.reason if judged else ""),
        )
        for agent in self._agents:
            agent.learn(lesson)

    def _tell(self, trial: TrialRecord, climber: Climber, outcome: TrialOutcome) -> None:
        interval = climber.score.interval if climber.score and not climber.failed else None
        news = TrialNews(
            number=trial.number,
            stage=STAGE,
            rung=trial.rung,
            config=climber.config,
            state=outcome.state,
            feasible=climber.feasible,
            reason=outcome.reason,
            ratio=interval.ratio if interval else None,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
        )
        self._session.progress.on_trial(news, self._session.watch.left_s)

    def _job(
        self, trial: TrialRecord, config: SpecConfig, requests: Sequence[Request]
    ) -> MeasureJob:
        deployment, baseline = self._session.deployment, self._baseline
        limit = max(LEAST_TIMEOUT_S, PATIENCE * self._expected_s(requests))
        return MeasureJob(
            job_id=self._session.job_id(trial),
            target=deployment.target,
            requests=tuple(requests),
            configs={STOCK: OFF, CANDIDATE: config},
            concurrency=deployment.regime.concurrency,
            repeats=self._repeats,
            inputs=baseline.inputs,
            references={r.request_id: baseline.references[r.request_id] for r in requests},
            margin_noise=baseline.margin_noise,
            stock_ties=baseline.stock_ties,
            stock_positions=baseline.stock_positions,
            stop_early=True,
            timeout_s=min(limit, max(1.0, self.seconds_left)),
        )

    def _requests(self, rung: int) -> tuple[Request, ...]:
        span = self._rungs[rung]
        return self._baseline.tuning[span.start : span.stop]

    def _expected_s(self, requests: Sequence[Request]) -> float:
        stock_s = self._baseline.seconds_of(requests)
        return min(START_S, stock_s) + stock_s * self._cost

    def _fits(self, requests: Sequence[Request]) -> bool:
        return self._expected_s(requests) <= self.seconds_left

    def _learn_cost(self, seconds: float, requests: Sequence[Request]) -> None:
        stock_s = self._baseline.seconds_of(requests)
        if stock_s > 0:
            measured = max(0.0, seconds - min(START_S, stock_s)) / stock_s
            self._cost += SETTLING * (measured - self._cost)


def _give_up(climber: Climber, trial: TrialRecord, reason: str) -> None:
    """The trial was not measured for want of time; what was measured before still counts."""
    if trial.rung == 0:
        climber.failed = reason
    else:
        climber.stopped = True
