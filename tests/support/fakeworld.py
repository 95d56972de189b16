"""A world where every configuration costs a known number of seconds, on a clock that it moves
itself.

``FakeExecutor`` runs measuring jobs by formula: stock needs a second for so many tokens, a
configuration ``stock / speed(config)``, with optional noise that depends on the seed alone. No
model, no sleeping.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftsmith.engine.job import (
    STOCK,
    MeasureJob,
    MeasureResult,
    OutputRecord,
    TargetRef,
    UnitTiming,
)
from draftsmith.engine.timing import losing
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.engine.workload_formats import WorkloadRow
from draftsmith.tuner.deployment import Deployment, Effort, Regime, WorkloadSpec
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.material import Material, Prompt
from draftsmith.workers.units import split_units

TOKENS_A_PROMPT = 20
TICK_S = 1e-6  # any waiting moves the clock, however short
CATEGORIES = ("chat", "code", "edit", "extract")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the tuner may catch it."""


@dataclass
class World:
    """``speed(config)`` is the speed-up over stock, ``lossy(config)`` whether its outputs differ
    from stock's, ``status(config)`` how its jobs end, ``seconds(config, value)`` may replace a
    measured time with anything, ``pace(now)`` stretches all times of a job that starts then.
    ``kill_at`` raises at that submit or result (1, 2, ...).
    """

    speed: Callable[[SpecConfig], float]
    lossy: Callable[[SpecConfig], bool] = lambda config: False
    status: Callable[[SpecConfig], str] = lambda config: "ok"
    seconds: Callable[[SpecConfig, float], Any] = lambda config, value: value
    pace: Callable[[float], float] = lambda now: 1.0
    stock_s: float = 1.0
    noise: float = 0.0
    seed: int = 0
    kill_at: int | None = None
    now_s: float = 1000.0
    calls: int = 0
    jobs: list[MeasureJob] = field(default_factory=list)  # that ended with a result

    def now(self) -> float:
        return self.now_s

    def call(self) -> None:
        self.calls += 1
        if self.kill_at is not None and self.calls == self.kill_at:
            raise Killed

    def measured(self, stage: str) -> list[SpecConfig]:
        """Configurations of finished jobs that asked for ``stage``'s kind of measuring."""
        found = []
        for job in self.jobs:
            kind = "confirm" if job.force_all and len(job.configs) > 1 else "explore"
            if len(job.configs) > 1 and kind == stage:
                found.append(job.configs["candidate"])
        return found


class FakeExecutor:
    """Runs a job when its result is asked for; ``num_workers`` jobs share the passing time."""

    def __init__(self, world: World, num_workers: int = 1) -> None:
        self._world = world
        self._num_workers = num_workers
        self._running: deque[tuple[float, MeasureJob, MeasureResult]] = deque()
        self.is_closed = False

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def submit(self, job: MeasureJob) -> None:
        self._world.call()
        result, seconds = run_job(self._world, job)
        self._running.append((self._world.now_s + seconds, job, result))

    def next_result(self, timeout_s: float | None) -> MeasureResult | None:
        world = self._world
        if not self._running:
            world.now_s += timeout_s or 0.0
            return None
        first = min(self._running, key=lambda item: item[0])
        if timeout_s is not None and first[0] > world.now_s + timeout_s:
            world.now_s += max(timeout_s, TICK_S)
            return None
        world.call()
        self._running.remove(first)
        world.now_s = max(world.now_s, first[0])
        world.jobs.append(first[1])
        return first[2]

    def cancel_all(self) -> None:
        cancelled = [
            (self._world.now_s, job, MeasureResult(job_id=job.job_id, status="cancelled"))
            for _, job, _ in self._running
        ]
        self._running = deque(cancelled)

    def close(self) -> None:
        self.is_closed = True


def run_job(world: World, job: MeasureJob) -> tuple[MeasureResult, float]:
    """The answer and the seconds that it takes."""
    if not job.requests:
        return MeasureResult(job_id=job.job_id, status="error", reason="no requests"), 0.0
    for name, config in job.configs.items():
        status = world.status(config) if name != STOCK else "ok"
        if status == "hang":
            reason = f"no end after {job.timeout_s:.0f} s"
            return MeasureResult(job_id=job.job_id, status="timeout", reason=reason), job.timeout_s
        if status != "ok":
            return MeasureResult(job_id=job.job_id, status=status, reason="as scripted"), 1.0
    timings: list[UnitTiming] = []
    outputs: list[OutputRecord] = []
    total = 0.0
    groups = [unit.requests for unit in split_units(job.requests, job.concurrency)]
    stopped = False
    lists: dict[str, list[float]] = {name: [] for name in job.configs}
    for unit, group in enumerate(groups):
        for repeat in range(job.repeats):
            for name, config in job.configs.items():
                seconds = _seconds(world, config, name, group, job.job_id, repeat, job.concurrency)
                total += seconds
                lists[name].append(seconds)
                timings.append(_timing(world, config, name, group, unit, repeat, seconds))
        for name, config in job.configs.items():
            outputs.extend(_output(world, config, name, request, job) for request in group)
        others = [name for name in job.configs if name != STOCK]
        if job.stop_early and len(others) == 1 and unit >= 2:
            stopped = losing(lists[STOCK], lists[others[0]], 0.99)
            if stopped:
                break
    result = MeasureResult(
        job_id=job.job_id,
        status="ok",
        timings=tuple(timings),
        outputs=tuple(outputs),
        margin_noise=0.01,
        stock_positions=total_tokens(outputs),
        stopped_early=stopped and unit + 1 < len(groups),
        worker="fake",
        wall_s=total,
    )
    return result, total


def total_tokens(outputs: Sequence[OutputRecord]) -> int:
    return sum(len(output.token_ids) for output in outputs if output.config == STOCK)


def stock_output(request: Request) -> tuple[int, ...]:
    """Tokens that follow from the prompt alone."""
    digest = hashlib.sha256(repr(request.prompt_ids).encode()).digest()
    return tuple(10 + byte % 50 for byte in digest[:TOKENS_A_PROMPT])


def _seconds(
    world: World,
    config: SpecConfig,
    name: str,
    group: Sequence[Request],
    job_id: str,
    repeat: int,
    concurrency: int,
) -> float:
    batches = math.ceil(len(group) / concurrency)  # a batch of requests takes as long as one
    each_s = world.stock_s * (0.8 + 0.4 * (group[0].prompt_ids[0] % 7) / 6)
    base = batches * world.pace(world.now_s) * each_s
    speed = 1.0 if name == STOCK else world.speed(config)
    ids = ",".join(request.request_id for request in group)
    trial = job_id.partition("/")[2]  # without the run's uuid, which is another one each time
    rng = random.Random(f"{world.seed}/{trial}/{ids}/{name}/{repeat}")
    return base / speed * max(0.2, rng.gauss(1.0, world.noise))


def _timing(
    world: World,
    config: SpecConfig,
    name: str,
    group: Sequence[Request],
    unit: int,
    repeat: int,
    seconds: float,
) -> UnitTiming:
    tokens = TOKENS_A_PROMPT * len(group)
    steps = tokens if name == STOCK else max(1, tokens // 2)
    return UnitTiming(
        config=name,
        unit=unit,
        repeat=repeat,
        request_ids=tuple(request.request_id for request in group),
        category=group[0].category,
        seconds=seconds if name == STOCK else world.seconds(config, seconds),
        prefill_s=seconds * 0.1,
        num_tokens=tokens,
        num_steps=steps,
        num_drafted=0 if name == STOCK else 2 * steps,
        num_accepted=0 if name == STOCK else tokens - steps,
    )


def _output(
    world: World, config: SpecConfig, name: str, request: Request, job: MeasureJob
) -> OutputRecord:
    tokens = stock_output(request)
    if name != STOCK and world.lossy(config):
        changed = (*tokens[:3], tokens[3] + 100, *tokens[4:])
        return OutputRecord(
            config=name,
            request_id=request.request_id,
            token_ids=changed,
            stop_reason="length",
            judgement="divergent",
            position=3,
            emitted=changed[3],
            expected=tokens[3],
            margin=1.5,
        )
    return OutputRecord(
        config=name,
        request_id=request.request_id,
        token_ids=tokens,
        stop_reason="length",
        judgement="exact",
        accepted_by_position=(8, 4) if name != STOCK else (),
        drafted_by_position=(10, 10) if name != STOCK else (),
    )


class PlainTokenizer:
    """Token ids are words of digits; enough for prompts of token ids."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        del add_special_tokens
        return [ord(letter) % 60 for letter in text] or [1]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = True) -> str:
        del skip_special_tokens
        return " ".join(str(token) for token in token_ids)


def make_material(
    deployment: Deployment, *, num_tuning: int, num_heldout: int, turns: int = 1
) -> Material:
    """Prompts without a file: every category in turn."""
    return Material(
        deployment=deployment,
        facts=SpaceFacts(
            num_layers=8,
            vocab_size=2048,
            families=deployment.drafters,
            concurrency=deployment.regime.concurrency,
            temperature=deployment.regime.sampling.temperature,
        ),
        tokenizer=PlainTokenizer(),
        tuning=_prompts("t", num_tuning, turns),
        heldout=_prompts("h", num_heldout, turns),
        num_duplicates=0,
        num_too_long=0,
        num_own_sampling=0,
    )


def make_deployment(folder: Path, *, effort: Effort, concurrency: int = 1) -> Deployment:
    """A deployment whose workload file exists and whose target is a name."""
    workload = folder / "prompts.jsonl"
    workload.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return Deployment(
        target=TargetRef(path="fake-target"),
        workload=WorkloadSpec(path=str(workload)),
        drafters=("ngram", "suffix", "recycle", "early_exit"),
        regime=Regime(concurrency=concurrency),
        effort=effort,
    )


def _prompts(prefix: str, count: int, turns: int) -> tuple[Prompt, ...]:
    prompts = []
    for index in range(count):
        category = CATEGORIES[index % len(CATEGORIES)]
        row_id = f"{prefix}{index}"
        asked = tuple(f"{row_id} question {turn}" for turn in range(turns))
        row = WorkloadRow(
            row_id=row_id, line=index + 1, digest=row_id, category=category, turns=asked
        )
        prompts.append(Prompt(row_id=row_id, category=category, num_turns=turns, row=row))
    return tuple(prompts)
