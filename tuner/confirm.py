"""Step 10: one finalist against stock, and against the incumbent, on prompts the search never saw.

Every pass runs all names interleaved, unit by unit, and every output is token-forced. The verdict
follows the 95 % paired bootstrap interval; a winner must also gain more than the one per cent
within which off, the simpler one, is preferred. A second finalist is tried only when the deployment
asked for it beforehand, and then both are held to Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from draftsmith.engine.job import STOCK, MeasureJob
from draftsmith.engine.types import SpecConfig
from draftsmith.engine.units import in_pieces, unit_size
from draftsmith.store.records import NewTrial, TrialOutcome, TrialRecord
from draftsmith.tuner.allotment import MAX_PASSES, Supply, confirm_s
from draftsmith.tuner.baseline import OFF, Baseline
from draftsmith.tuner.dispatch import Finished
from draftsmith.tuner.evidence import BadMeasurementError, Evidence
from draftsmith.tuner.ladder import NEAR
from draftsmith.tuner.objective import CONFIDENCE, Score, score
from draftsmith.tuner.outcome import CANDIDATE, INCUMBENT, read_result, read_stored, to_outcome
from draftsmith.tuner.progress import TrialNews
from draftsmith.tuner.result import Interval
from draftsmith.tuner.session import Session
from draftsmith.tuner.space import config_json, config_text

STAGE = "confirm"
CHUNK_S = 90.0
PATIENCE = 5.0
LEAST_TIMEOUT_S = 60.0
_PLAN = "confirm_plan"

RatioVerdict = Literal["faster", "slower", "inconclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """One finalist's evidence on the held-out prompts. ``against_incumbent`` pairs the two
    directly; ``incumbent`` is the incumbent's own evidence against stock. ``failure`` says why
    there is no score.
    """

    config: SpecConfig
    evidence: Evidence = field(default_factory=Evidence)
    score: Score | None = None
    incumbent: Evidence = field(default_factory=Evidence)
    incumbent_score: Score | None = None
    against_incumbent: Interval | None = None
    passes: int = 0
    failure: str = ""

    @property
    def verdict(self) -> RatioVerdict:
        """Against stock; a finalist that failed or is lossy has shown nothing."""
        if self.failure or self.score is None or not self.score.feasible:
            return "inconclusive"
        return judge(self.score.interval)

    @property
    def wins(self) -> bool:
        """Faster than stock, and by more than the share within which the simpler one (off) is
        preferred.
        """
        interval = self.score.interval if self.score else None
        return self.verdict == "faster" and interval is not None and interval.ratio > 1.0 + NEAR


def judge(interval: Interval | None) -> RatioVerdict:
    """What an interval of speed ratios says."""
    if interval is None:
        return "inconclusive"
    if interval.low > 1.0:
        return "faster"
    return "slower" if interval.high < 1.0 else "inconclusive"


def holm_confidence(num_finalists: int) -> float:
    """Confidence that the first to be called a winner must reach: one of several hypotheses is
    rejected at alpha over their number first (Holm 1979).
    """
    return 1.0 - (1.0 - CONFIDENCE) / num_finalists


def confirm(
    session: Session,
    baseline: Baseline,
    finalist: SpecConfig,
    incumbent: SpecConfig | None,
    *,
    place: int = 0,
    num_finalists: int = 1,
) -> Confirmation:
    """Measure the ``place``-th finalist on the held-out prompts and judge it."""
    names = {STOCK: OFF, CANDIDATE: finalist}
    if incumbent is not None and incumbent != finalist:
        names[INCUMBENT] = incumbent
    plan = _plan(session, baseline, finalist, place, len(names))
    chunks = in_pieces(baseline.heldout, plan.chunk_size, session.deployment.regime.concurrency)
    session.progress.on_phase(
        "confirm",
        f"{config_text(finalist)} on {len(baseline.heldout)} prompts, {plan.passes} passes",
        session.watch.left_s,
    )
    first_rung = place * len(baseline.heldout)

    def build(trial: TrialRecord) -> MeasureJob:
        requests = chunks[trial.rung - first_rung]
        expected = baseline.seconds_of(requests) * len(names) * (plan.passes + 1)
        return MeasureJob(
            job_id=session.job_id(trial),
            target=session.deployment.target,
            requests=requests,
            configs=names,
            concurrency=session.deployment.regime.concurrency,
            repeats=plan.passes,
            inputs=baseline.inputs,
            references={r.request_id: baseline.references[r.request_id] for r in requests},
            margin_noise=baseline.margin_noise,
            stock_ties=baseline.stock_ties,
            stock_positions=baseline.stock_positions,
            force_all=True,
            timeout_s=max(LEAST_TIMEOUT_S, PATIENCE * expected),
        )

    def read(finished: Finished) -> TrialOutcome:
        return _outcome(session, baseline, finished, finalist)

    trials = [
        NewTrial(
            config=config_json(finalist),
            stage=STAGE,
            rung=first_rung + index,
            proposer="ranking",
            why="best on the tuning prompts",
            budgeted=False,
        )
        for index in range(len(chunks))
    ]
    session.carry_out(STAGE, trials, build, read)
    rungs = range(first_rung, first_rung + len(chunks))
    stored = [
        trial
        for trial in session.repository.trials(session.run.id, stage=STAGE)
        if trial.rung in rungs
    ]
    confidence = holm_confidence(num_finalists)
    return _conclude(session, baseline, finalist, stored, INCUMBENT in names, plan, confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    passes: int
    chunk_size: int


def _plan(
    session: Session, baseline: Baseline, finalist: SpecConfig, place: int, num_names: int
) -> _Plan:
    """Passes that fit the time left and the size of a job; decided once a finalist, kept in the
    store.
    """
    kept = session.artifact(f"{_PLAN}_{place}")
    if kept is not None and kept["config"] == config_json(finalist):
        return _Plan(passes=kept["passes"], chunk_size=kept["chunk_size"])
    heldout = baseline.heldout
    each_s = baseline.seconds_of(heldout) / len(heldout)
    supply = Supply(
        left_s=session.watch.left_s,
        num_tuning=0,
        num_heldout=len(heldout),
        num_workers=session.num_workers,
        num_incumbents=num_names - 2,
        concurrency=session.deployment.regime.concurrency,
    )
    fitting = [
        passes
        for passes in range(1, MAX_PASSES + 1)
        if confirm_s(each_s, len(heldout), supply, passes=passes) <= supply.left_s
    ]
    passes = max(fitting, default=1)
    concurrency = session.deployment.regime.concurrency
    by_time = CHUNK_S / (each_s * num_names * passes)
    by_worker = math.ceil(len(heldout) / session.num_workers)
    group = unit_size(concurrency)
    size = max(1, int(min(by_time, by_worker)) // group) * group
    plan = _Plan(passes=passes, chunk_size=size)
    session.keep(
        f"{_PLAN}_{place}",
        {"config": config_json(finalist), "passes": plan.passes, "chunk_size": plan.chunk_size},
    )
    return plan


def _outcome(
    session: Session, baseline: Baseline, finished: Finished, finalist: SpecConfig
) -> TrialOutcome:
    reading = read_result(finished.result, baseline.stock)
    failure, judged = reading.failure, None
    if reading.evidence is not None:
        try:
            judged = score(reading.evidence, session.deployment.objective)
        except BadMeasurementError as error:
            failure = str(error)
    outcome = to_outcome(finished.result, score=judged, failure=failure)
    interval = judged.interval if judged else None
    news = TrialNews(
        number=finished.trial.number,
        stage=STAGE,
        rung=finished.trial.rung,
        config=finalist,
        state=outcome.state,
        feasible=outcome.feasible,
        reason=outcome.reason,
        ratio=interval.ratio if interval else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
    )
    session.progress.on_trial(news, session.watch.left_s)
    return outcome


def _conclude(
    session: Session,
    baseline: Baseline,
    finalist: SpecConfig,
    stored: Sequence[TrialRecord],
    with_incumbent: bool,
    plan: _Plan,
    confidence: float,
) -> Confirmation:
    """Pool the chunks. One failed chunk fails the confirmation: its prompts cannot be left out."""
    failed = [trial.reason for trial in stored if trial.state != "done"]
    if failed:
        return Confirmation(config=finalist, passes=plan.passes, failure=failed[0])
    repository, stock = session.repository, baseline.stock
    own, incumbent, direct = Evidence(), Evidence(), Evidence()
    for trial in stored:
        own = own + read_stored(repository, trial, stock)
        if with_incumbent:
            incumbent = incumbent + read_stored(repository, trial, stock, name=INCUMBENT)
            direct = direct + read_stored(repository, trial, stock, against=INCUMBENT)
    objective = session.deployment.objective
    return Confirmation(
        config=finalist,
        evidence=own,
        score=score(own, objective, confidence=confidence),
        incumbent=incumbent,
        incumbent_score=score(incumbent, objective) if with_incumbent else None,
        against_incumbent=(
            score(direct, objective, confidence=confidence).interval if with_incumbent else None
        ),
        passes=plan.passes,
    )
