"""The timed part of a job: every configuration over every unit, interleaved."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, Protocol

from draftsmith.engine.job import STOCK, MeasureJob, RivalTurn, UnitTiming
from draftsmith.engine.native import NativeEngine, Outcome, rows_needed
from draftsmith.engine.timing import losing
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.workers.judging import Findings, Outputs
from draftsmith.workers.memory import memory_in_use, reset_peak
from draftsmith.workers.units import Unit, split_units, turn_order, warm_up_requests

MIN_UNITS_TO_STOP = 3
STOP_CONFIDENCE = 0.99  # looked at after every unit, hence stricter than the final 0.95


class RivalOutput(NamedTuple):
    """Outputs in request order; ``prefill_s`` is None where the engine does not tell."""

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    prefill_s: float | None


class Rival(Protocol):
    """Another engine, timed in the same rotation on the same prompts; never judged."""

    def run(self, requests: Sequence[Request], stop_ids: Sequence[int]) -> RivalOutput | None:
        """Called once a turn, nothing else being timed meanwhile. None once it has failed."""
        ...


@dataclass(slots=True)
class Progress:
    """What a job has measured so far; whole units only, so that timings always pair up."""

    timings: list[UnitTiming] = field(default_factory=list)
    rival_turns: list[RivalTurn] = field(default_factory=list)
    outputs: Outputs = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    stopped_early: bool = False


class TimedRun:
    """The timed part of one job."""

    def __init__(
        self,
        job: MeasureJob,
        engine: NativeEngine,
        progress: Progress,
        check: Callable[[], None],
        rivals: Mapping[str, Rival] | None = None,
    ) -> None:
        self._job = job
        self._engine = engine
        self._progress = progress
        self._check = check
        self._units = split_units(job.requests, job.concurrency)
        self._rivals = dict(rivals or {})
        self._names = tuple(job.configs)
        needed = max((rows_needed(request) for request in job.requests), default=0)
        self._capacity = max(needed, job.target.cache_capacity or 0)
        self._references: dict[str, tuple[int, ...]] = dict(job.references)

    def execute(self) -> None:
        self._progress.outputs.update({name: {} for name in self._ordered_stock_first()})
        self._warm_up()
        for repeat in range(self._job.repeats):
            for unit in self._units:
                self._check()
                self._time_unit(unit, repeat)
                if self._job.stop_early and self._all_losing():
                    self._progress.stopped_early = True
                    return

    def _ordered_stock_first(self) -> tuple[str, ...]:
        return (STOCK, *(name for name in self._names if name != STOCK))

    def _warm_up(self) -> None:
        """Every configuration once on the longest unit, so that its cache and drafter are there at
        their full size; nothing of it is counted.
        """
        unit = max(self._units, key=lambda unit: max(len(r.prompt_ids) for r in unit.requests))
        requests = warm_up_requests(unit, self._job.warmup_tokens)
        for name in self._names:
            self._check()
            if self._job.configs[name].drafter == "scripted":
                self._know_references(self._job.requests)
            if self._job.warmup_tokens > 0:
                self._run(name, requests)
        for rival in self._rivals.values():
            self._check()
            if self._job.warmup_tokens > 0:
                rival.run(requests, self._stop_ids(requests))

    def _know_references(self, requests: tuple[Request, ...]) -> None:
        """Stock's outputs for the scripted drafter, where the job does not bring them."""
        missing = [r for r in requests if r.request_id not in self._references]
        if missing:
            outcome = self._engine.run(missing, SpecConfig(), concurrency=self._job.concurrency)
            self._references.update({c.request_id: c.token_ids for c in outcome.completions})

    def _time_unit(self, unit: Unit, repeat: int) -> None:
        timings: list[UnitTiming] = []
        turns: list[RivalTurn] = []
        outcomes: dict[str, Outcome] = {}
        with _gc_paused():
            for name in turn_order((*self._names, *self._rivals), unit.index + repeat):
                if name in self._rivals:
                    output = self._rivals[name].run(unit.requests, self._stop_ids(unit.requests))
                    turns += [] if output is None else [_turn(name, unit, repeat, output)]
                    continue
                outcomes[name] = self._run(name, unit.requests)
                timings.append(_timing(name, unit, repeat, outcomes[name]))
        self._progress.timings.extend(timings)
        self._progress.rival_turns.extend(turns)
        for name, outcome in outcomes.items():
            for completion in outcome.completions:
                by_request = self._progress.outputs[name]
                by_request.setdefault(completion.request_id, []).append(completion)

    def _stop_ids(self, requests: Sequence[Request]) -> tuple[int, ...]:
        """Tokens that end an output, the same for all requests of a comparison."""
        asked = requests[0].sampling
        eos = () if asked.ignore_eos else self._engine.model.info.eos_token_ids
        return tuple(dict.fromkeys((*eos, *asked.stop_token_ids)))

    def _run(self, name: str, requests: tuple[Request, ...]) -> Outcome:
        config = self._job.configs[name]
        device = self._job.target.device
        reset_peak(device)
        outcome = self._engine.run(
            requests,
            config,
            concurrency=self._job.concurrency,
            inputs=self._job.inputs,
            references=self._references if config.drafter == "scripted" else None,
            capacity=self._capacity,
        )
        peaks = self._progress.peak_bytes
        peaks[name] = max(peaks.get(name, 0), memory_in_use(device))
        return outcome

    def _all_losing(self) -> bool:
        """Whether every configuration but stock is slower beyond doubt over the units so far."""
        seconds = {name: self._unit_seconds(name) for name in self._names}
        rivals = [name for name in self._names if name != STOCK]
        return (
            bool(rivals)
            and len(seconds[STOCK]) >= MIN_UNITS_TO_STOP
            and all(losing(seconds[STOCK], seconds[name], STOP_CONFIDENCE) for name in rivals)
        )

    def _unit_seconds(self, name: str) -> list[float]:
        """One number a unit, the median of its repeats: these are no evidence of their own."""
        repeats: dict[int, list[float]] = {}
        for timing in self._progress.timings:
            if timing.config == name:
                repeats.setdefault(timing.unit, []).append(timing.seconds)
        return [median(repeats[unit]) for unit in sorted(repeats)]


def _timing(name: str, unit: Unit, repeat: int, outcome: Outcome) -> UnitTiming:
    steps = [step for completion in outcome.completions for step in completion.steps]
    return UnitTiming(
        config=name,
        unit=unit.index,
        repeat=repeat,
        request_ids=unit.request_ids,
        category=unit.category,
        seconds=outcome.wall_s,
        prefill_s=sum(completion.prefill_s for completion in outcome.completions),
        num_tokens=sum(len(completion.token_ids) for completion in outcome.completions),
        num_steps=len(steps),
        num_drafted=sum(step.drafted for step in steps),
        num_accepted=sum(step.accepted for step in steps),
    )


def _turn(name: str, unit: Unit, repeat: int, output: RivalOutput) -> RivalTurn:
    return RivalTurn(
        rival=name,
        unit=unit.index,
        repeat=repeat,
        request_ids=unit.request_ids,
        category=unit.category,
        seconds=output.seconds,
        prefill_s=output.prefill_s,
        token_ids=output.token_ids,
    )


@contextmanager
def _gc_paused() -> Iterator[None]:
    """No garbage collection in the middle of a timed run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
