"""Step 2: stock over the prompts. Its outputs are the references, its speed shares out the budget.

Turn by turn, because the second turn of a conversation follows stock's own first answer. A pilot of
a few prompts comes first; from its speed follows how many prompts the budget can hold. Work is cut
into chunks of about a minute, each a trial in the store, so that a killed baseline loses at most
what was running.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftsmith.engine.job import STOCK, DraftInputs, MeasureJob
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.store.records import NewTrial, StoredReference, TrialOutcome, TrialRecord
from draftsmith.tuner.allotment import JUDGING, Allotment, Supply, allot
from draftsmith.tuner.dispatch import Finished
from draftsmith.tuner.errors import TunerEnvironmentError
from draftsmith.tuner.material import Prompt
from draftsmith.tuner.outcome import baseline_outcome
from draftsmith.tuner.session import Session
from draftsmith.tuner.space import config_json

STAGE = "baseline"
OFF = SpecConfig()
CHUNK_S = 60.0
PILOT_PROMPTS = 3
SLOWEST_PILOT_S = 1800.0  # a pilot that takes longer has hung
_SPLIT, _CHUNKS = "split", "baseline_chunks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """``tuning`` and ``heldout`` are the requests in use, spread over the categories. ``stock_s``
    are stock's seconds by request, ``references`` its outputs. ``margin_noise`` is the largest of
    the jobs.
    """

    tuning: tuple[Request, ...]
    heldout: tuple[Request, ...]
    references: Mapping[str, tuple[int, ...]]
    stock_s: Mapping[str, float]
    tokens_per_s: float
    margin_noise: float | None
    stock_ties: int  # positions where stock, forced, chose otherwise than it did one at a time,
    stock_positions: int  # of so many
    inputs: DraftInputs
    confirm_s: float

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
    allotment = _share_out(session, seen, num_incumbents)
    tuning = material.tuning[: allotment.num_tuning]
    heldout = material.heldout[: allotment.num_heldout]
    for turn in range(max(prompt.num_turns for prompt in tuning + heldout)):
        prompts = tuple(p for p in tuning + heldout if p.num_turns > turn)
        seen.measure(_cut(seen.uncovered(turn, prompts), session, seen.stock_s_per_request))
    return seen.summarise(tuning, heldout, allotment)


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
        """Those of ``prompts`` that no chunk of this turn holds."""
        covered = {
            prompt.row_id
            for chunk in self._chunks
            if chunk.turn == turn
            for prompt in chunk.prompts
        }
        return _Wave(turn=turn, prompts=tuple(p for p in prompts if p.row_id not in covered))

    def request(self, prompt: Prompt, turn: int) -> Request | None:
        key = (prompt.row_id, turn)
        if key not in self._requests:
            request = self._session.material.request(prompt, turn, self.outputs)
            if request is None:
                return None
            self._requests[key] = request
        return self._requests[key]

    def summarise(
        self, tuning: Sequence[Prompt], heldout: Sequence[Prompt], allotment: Allotment
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
            references=self.outputs,
            stock_s=self._seconds,
            tokens_per_s=self._tokens / sum(self._seconds.values()),
            margin_noise=max(self._noise, default=None),
            stock_ties=self._ties,
            stock_positions=self._positions,
            inputs=DraftInputs(draft_vocab_ids=ranked),
            confirm_s=allotment.confirm_s,
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
            for request_id in timing.request_ids:
                self._seconds[request_id] = timing.seconds / len(timing.request_ids)
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


def _share_out(session: Session, seen: _Measured, num_incumbents: int) -> Allotment:
    """How many prompts the budget holds; decided once a run."""
    kept = session.artifact(_SPLIT)
    if kept is not None:
        return Allotment(**kept)
    material = session.material
    prompts = material.tuning + material.heldout
    turns = sum(prompt.num_turns for prompt in prompts) / len(prompts)
    allotment = allot(
        seen.stock_s_per_request * turns,
        Supply(
            left_s=session.watch.left_s,
            num_tuning=len(material.tuning),
            num_heldout=len(material.heldout),
            num_workers=session.num_workers,
            num_incumbents=num_incumbents,
        ),
    )
    session.keep(
        _SPLIT,
        {
            "num_tuning": allotment.num_tuning,
            "num_heldout": allotment.num_heldout,
            "confirm_s": allotment.confirm_s,
        },
    )
    return allotment


def _cut(wave: _Wave, session: Session, seconds_a_request: float) -> list[_Wave]:
    """Chunks of about a minute, whole groups of requests, at least one chunk for each worker."""
    concurrency = session.deployment.regime.concurrency
    by_time = CHUNK_S / max(1e-9, seconds_a_request * (1 + JUDGING))
    by_worker = math.ceil(len(wave.prompts) / session.num_workers)
    groups = max(1, int(min(by_time, by_worker)) // concurrency)
    size = groups * concurrency
    return [
        _Wave(turn=wave.turn, prompts=wave.prompts[start : start + size])
        for start in range(0, len(wave.prompts), size)
    ]


def _read(finished: Finished) -> TrialOutcome:
    result = finished.result
    if result.status != "ok":
        raise TunerEnvironmentError(
            f"stock could not be measured ({result.status}): {result.reason or 'no reason given'}"
        )
    return baseline_outcome(result)


def _to_json(wave: _Wave) -> dict[str, Any]:
    return {"turn": wave.turn, "prompts": [prompt.row_id for prompt in wave.prompts]}


def _from_json(value: Mapping[str, Any], session: Session) -> _Wave:
    material = session.material
    by_id = {prompt.row_id: prompt for prompt in material.tuning + material.heldout}
    return _Wave(turn=value["turn"], prompts=tuple(by_id[row_id] for row_id in value["prompts"]))
