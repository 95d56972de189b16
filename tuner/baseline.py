"""Step 2: stock over the prompts. Its outputs are the references, its speed shares out the budget.

A pilot of a few prompts comes first; from its speed follows how many prompts the budget can hold.
They are decoded in rounds, each turn by turn, because the second turn of a conversation follows
stock's own first answer. Before each round the speed so far is looked at again: where the machine
has become slower, the rounds that no longer fit are left out. A round is cut into one chunk a
worker, each a trial in the store, so that a killed baseline loses at most what was running.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from draftsmith.engine.job import STOCK, DraftInputs, MeasureJob
from draftsmith.engine.prompts import request_id
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.engine.units import in_pieces, unit_size
from draftsmith.store.records import NewTrial, StoredReference, TrialOutcome, TrialRecord
from draftsmith.tuner.allotment import (
    FIXED_SHARE,
    MIN_PASSES,
    Allotment,
    Supply,
    allot,
    baseline_s,
    confirm_s,
    cut,
    reserve_s,
)
from draftsmith.tuner.dispatch import Finished
from draftsmith.tuner.errors import TunerEnvironmentError, TunerInputError
from draftsmith.tuner.evidence import StockRecord
from draftsmith.tuner.material import Prompt
from draftsmith.tuner.outcome import baseline_outcome
from draftsmith.tuner.session import Session
from draftsmith.tuner.space import config_json

STAGE = "baseline"
OFF = SpecConfig()
ROUND_S = 60.0
MIN_ROUNDS = 4
PILOT_PROMPTS = 3
NOISE_POSITIONS = (
    1000  # forced and compared with stock one at a time before its noise is taken as known
)
SLOWEST_PILOT_S = 1800.0  # a pilot that takes longer has hung
_PLAN, _USED, _CHUNKS = "baseline_plan", "baseline_prompts", "baseline_chunks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """``tuning`` and ``heldout`` are the requests in use, spread over the categories. ``stock_s``
    are stock's seconds by request, ``references`` its outputs. ``margin_noise`` is the largest of
    the jobs. The budget holds ``num_prompts``; those of them that stock gave no output for are
    ``unanswered``, by row id.
    """

    tuning: tuple[Request, ...]
    heldout: tuple[Request, ...]
    num_prompts: int
    unanswered: tuple[str, ...]
    references: Mapping[str, tuple[int, ...]]
    stock_s: Mapping[str, float]
    tokens_per_s: float
    margin_noise: float | None
    stock_ties: int  # positions where stock, forced, chose otherwise than it did one at a time,
    stock_positions: int  # of so many
    inputs: DraftInputs
    confirm_s: float

    @property
    def stock(self) -> StockRecord:
        """What outputs of a configuration are compared with."""
        return StockRecord(
            references=self.references, ties=self.stock_ties, positions=self.stock_positions
        )

    def seconds_of(self, requests: Iterable[Request]) -> float:
        """Stock's seconds over ``requests``."""
        return sum(self.stock_s[request.request_id] for request in requests)


def measure_baseline(session: Session, *, num_incumbents: int) -> Baseline:
    """Stock's outputs and speed over the prompts that the budget can hold; what an earlier driver
    measured is taken from the store. Raises BudgetError when the budget is too small,
    TunerEnvironmentError when no worker can measure stock.
    """
    material = session.material
    seen = _Measured(session)
    seen.measure([_Wave(turn=0, prompts=_pilot(session))])
    for note in session.kernel_notes():
        session.progress.on_phase("baseline", note, session.watch.left_s)
    supply = Supply(
        left_s=session.watch.left_s,
        num_tuning=len(material.tuning),
        num_heldout=len(material.heldout),
        num_workers=session.num_workers,
        num_incumbents=num_incumbents,
        concurrency=session.deployment.regime.concurrency,
    )
    kept = session.artifact(_USED)
    if kept is None:
        used = _measure_what_fits(session, seen, supply)
        requests = sum(prompt.num_turns for prompt in material.heldout[: used.num_heldout])
        measured = replace(supply, left_s=session.watch.left_s)
        reserve = reserve_s(seen.stock_s_per_request, requests, measured)
        kept = {**asdict(used), "confirm_s": reserve}
        session.keep(_USED, kept)
    return seen.summarise(
        material.tuning[: kept["num_tuning"]],
        material.heldout[: kept["num_heldout"]],
        confirm_s=kept["confirm_s"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """Prompts whose requests of one turn are decoded in one job."""

    turn: int
    prompts: tuple[Prompt, ...]


class _Measured:
    """What the baseline's trials have shown so far; a chunk's index is its trial's rung."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._chunks: list[_Wave] = [
            _from_json(c, session) for c in session.artifact(_CHUNKS) or []
        ]
        self.outputs: dict[str, tuple[int, ...]] = {}
        self._stops: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._tokens = 0
        self._noise: list[float] = []
        self._ties = 0
        self._positions = 0
        self._read: set[int] = set()
        self._requests: dict[tuple[str, int], Request] = {}
        self._take_finished()

    @property
    def stock_s_per_request(self) -> float:
        return sum(self._seconds.values()) / max(1, len(self._seconds))

    @property
    def noise(self) -> float | None:
        """The largest margin noise of the jobs so far."""
        return max(self._noise, default=None)

    def measure(self, waves: Sequence[_Wave]) -> None:
        """Decode what of these waves no chunk has yet, and whatever an earlier driver left."""
        session = self._session
        for wave in waves:
            left = self.uncovered(wave.turn, wave.prompts)
            if left.prompts:
                self._chunks.append(left)
        session.keep(_CHUNKS, [_to_json(chunk) for chunk in self._chunks])
        trials = [
            NewTrial(config=config_json(OFF), stage=STAGE, rung=index, budgeted=False)
            for index in range(len(self._chunks))
        ]
        session.carry_out(STAGE, trials, self._build, _read)
        self._take_finished()

    def uncovered(self, turn: int, prompts: Sequence[Prompt]) -> _Wave:
        """Those of ``prompts`` that have this turn and no chunk of it yet."""
        covered = {
            prompt.row_id
            for chunk in self._chunks
            if chunk.turn == turn
            for prompt in chunk.prompts
        }
        return _Wave(
            turn=turn,
            prompts=tuple(
                prompt
                for prompt in prompts
                if prompt.num_turns > turn
                and prompt.row_id not in covered
                and self.request(prompt, turn) is not None
            ),
        )

    def request(self, prompt: Prompt, turn: int) -> Request | None:
        key = (prompt.row_id, turn)
        if key not in self._requests:
            request = self._session.material.request(prompt, turn, self.outputs)
            if request is None:
                return None
            self._requests[key] = request
        return self._requests[key]

    def summarise(
        self, tuning: Sequence[Prompt], heldout: Sequence[Prompt], *, confirm_s: float
    ) -> Baseline:
        session = self._session
        references = [
            StoredReference(request_id=key, token_ids=ids, stop_reason=self._stops[key])
            for key, ids in self.outputs.items()
        ]
        session.repository.save_references(session.run.id, references)
        tuning_requests = self._in_order(tuning)
        ranked = session.material.ranking(tuning_requests, self.outputs)
        return Baseline(
            tuning=tuning_requests,
            heldout=self._in_order(heldout),
            num_prompts=len(tuning) + len(heldout),
            unanswered=tuple(
                prompt.row_id
                for prompt in (*tuning, *heldout)
                if request_id(prompt.row_id, 1) not in self.outputs
            ),
            references=self.outputs,
            stock_s=self._seconds,
            tokens_per_s=self._tokens / sum(self._seconds.values()),
            margin_noise=self.noise,
            stock_ties=self._ties,
            stock_positions=self._positions,
            inputs=DraftInputs(draft_vocab_ids=ranked),
            confirm_s=confirm_s,
        )

    def _build(self, trial: TrialRecord) -> MeasureJob:
        chunk = self._chunks[trial.rung]
        deployment = self._session.deployment
        requests = [self.request(prompt, chunk.turn) for prompt in chunk.prompts]
        present = tuple(request for request in requests if request is not None)
        expected = self.stock_s_per_request * len(present)
        return MeasureJob(
            job_id=self._session.job_id(trial),
            target=deployment.target,
            requests=present,
            configs={STOCK: OFF},
            concurrency=deployment.regime.concurrency,
            force_all=True,
            margin_noise=None if self._positions < NOISE_POSITIONS else self.noise,
            timeout_s=max(SLOWEST_PILOT_S, 10 * expected),
        )

    def _take_finished(self) -> None:
        session = self._session
        for trial in session.repository.trials(session.run.id, stage=STAGE):
            if trial.state == "failed":
                raise TunerEnvironmentError(
                    f"stock could not be measured: job {trial.number} {trial.reason}"
                )
            if trial.state == "done":
                self._take(trial)

    def _take(self, trial: TrialRecord) -> None:
        if trial.id in self._read:
            return
        self._read.add(trial.id)
        repository = self._session.repository
        for output in repository.outputs(trial.id):
            self.outputs[output.request_id] = output.token_ids
            self._stops[output.request_id] = output.stop_reason
        for timing in repository.timings(trial.id):
            self._tokens += timing.num_tokens
            for key in timing.request_ids:
                self._seconds[key] = timing.seconds / len(timing.request_ids)
        summary = trial.summary or {}
        if summary.get("margin_noise") is not None:
            self._noise.append(summary["margin_noise"])
        self._ties += summary.get("stock_ties", 0)
        self._positions += summary.get("stock_positions", 0)

    def _in_order(self, prompts: Sequence[Prompt]) -> tuple[Request, ...]:
        requests = (
            self.request(prompt, turn) for prompt in prompts for turn in range(prompt.num_turns)
        )
        return tuple(r for r in requests if r is not None and r.request_id in self.outputs)


def _pilot(session: Session) -> tuple[Prompt, ...]:
    concurrency = session.deployment.regime.concurrency
    return session.material.tuning[: max(PILOT_PROMPTS, concurrency)]


def _measure_what_fits(session: Session, seen: _Measured, supply: Supply) -> Allotment:
    """Decode, round by round, the prompts whose baseline and confirmation fit their share of the
    budget at the speed seen so far; never fewer than the smallest run needs. How many that were.
    """
    material = session.material
    plan = session.artifact(_PLAN)
    if plan is None:
        plan = _plan(session, seen, supply)
        session.keep(_PLAN, plan)
    whole = Allotment(num_tuning=plan["num_tuning"], num_heldout=plan["num_heldout"])
    used = cut(whole, 0.0, supply.min_prompts)
    for number in range(plan["rounds"] + 1):
        larger = cut(whole, number / plan["rounds"], supply.min_prompts)
        heldout = material.heldout[: larger.num_heldout]
        prompts = material.tuning[: larger.num_tuning] + heldout
        done = len(seen.outputs) - plan["pilot"]
        if number > 0 and done > 0:
            spent_s = session.watch.elapsed_s
            left = sum(prompt.num_turns for prompt in prompts) - len(seen.outputs)
            round_s = max(0, left) * (spent_s - plan["began_s"]) / done
            requests = sum(prompt.num_turns for prompt in heldout)
            confirming_s = confirm_s(seen.stock_s_per_request, requests, supply, passes=MIN_PASSES)
            needed_s = spent_s + round_s + confirming_s
            if needed_s > FIXED_SHARE * session.deployment.effort.budget_s:
                break
        used = larger
        for turn in range(max(prompt.num_turns for prompt in prompts)):
            seen.measure(_chunks(seen.uncovered(turn, prompts), session))
    return used


def _plan(session: Session, seen: _Measured, supply: Supply) -> dict[str, Any]:
    """From the pilot's speed: how many prompts, in how many rounds, each of whole timed units for
    every worker.
    """
    prompts = session.material.tuning + session.material.heldout
    turns = sum(prompt.num_turns for prompt in prompts) / len(prompts)
    each_s = seen.stock_s_per_request * turns
    whole = allot(each_s, supply)
    by_time = max(MIN_ROUNDS, math.ceil(baseline_s(each_s, whole, supply) / ROUND_S))
    filled = supply.num_workers * unit_size(supply.concurrency)
    return {
        **asdict(whole),
        "rounds": max(1, min(by_time, (whole.num_tuning + whole.num_heldout) // filled)),
        "began_s": session.watch.elapsed_s,
        "pilot": len(seen.outputs),
    }


def _chunks(wave: _Wave, session: Session) -> list[_Wave]:
    """A chunk for each worker, whole timed units."""
    concurrency = session.deployment.regime.concurrency
    unit = unit_size(concurrency)
    units = max(1, math.ceil(len(wave.prompts) / session.num_workers / unit))
    return [
        _Wave(turn=wave.turn, prompts=piece)
        for piece in in_pieces(wave.prompts, units * unit, concurrency)
    ]


def _read(finished: Finished) -> TrialOutcome:
    result = finished.result
    if result.status != "ok":
        kind = TunerInputError if result.refused else TunerEnvironmentError
        raise kind(
            f"stock could not be measured ({result.status}): {result.reason or 'no reason given'}"
        )
    return baseline_outcome(result)


def _to_json(wave: _Wave) -> dict[str, Any]:
    return {"turn": wave.turn, "prompts": [prompt.row_id for prompt in wave.prompts]}


def _from_json(value: Mapping[str, Any], session: Session) -> _Wave:
    material = session.material
    by_id = {prompt.row_id: prompt for prompt in material.tuning + material.heldout}
    return _Wave(turn=value["turn"], prompts=tuple(by_id[row_id] for row_id in value["prompts"]))
