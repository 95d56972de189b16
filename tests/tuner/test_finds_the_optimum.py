"""On a model made with a known best configuration, ``tune`` finds what an exhaustive scan finds.

Everything is live: the model is trained here, the scan times every configuration of a grid through
the workers' own measuring, and ``tune`` searches chains of an early exit without being told more
than its starting points. Times are only ever compared with times taken interleaved with them, and
are the processor's, of one thread: the machine that runs the tests is shared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import pytest

from draftsmith.engine.job import STOCK, DraftInputs, MeasureJob, MeasureResult, TargetRef
from draftsmith.engine.timing import RatioInterval, paired_ratio
from draftsmith.engine.types import Request, Sampling, SpecConfig
from draftsmith.store.migrations.upgrade import open_database
from draftsmith.store.repository import Repository
from draftsmith.tuner.controller import RunOptions, tune
from draftsmith.tuner.deployment import Deployment, Effort, Regime, WorkloadSpec
from draftsmith.tuner.material import Material, Prompt, load_material
from draftsmith.tuner.result import TuneResult
from draftsmith.tuner.space import config_text
from draftsmith.workers.inprocess import InProcessExecutor
from draftsmith.workers.measure import Measurer
from tests.support.clock import ProcessorClock
from tests.support.trained import FIRST_EXIT, NUM_LAYERS, PERIOD, VOCAB_SIZE, trained_checkpoint

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1800)]  # trains, scans, tunes: minutes

OUTPUT_TOKENS = 42
EXITS = (1, 2, 4, 6)
BLOCKS = (1, 3, 5, 9)
VOCABS = (128, 256, None)  # all of the tuner's own grid: the model is asked about 256 ids
CONTENDERS = 4  # besides the best of the scan and its neighbours
APART = 0.05  # by this share at least every neighbour of the best is slower
NEAR = 0.02  # two configurations within this share of each other's speed are one and the same
MAX_TRIALS = 30

Scores = dict[SpecConfig, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One deployment with what the scan needs to measure as ``tune`` does."""

    deployment: Deployment
    material: Material
    measurer: Measurer
    requests: tuple[Request, ...]
    references: dict[str, tuple[int, ...]]
    inputs: DraftInputs

    def measure(
        self, configs: list[SpecConfig], num_prompts: int, repeats: int = 1
    ) -> MeasureResult:
        """All of ``configs`` and stock interleaved, prompt by prompt."""
        job = MeasureJob(
            job_id="scan",
            target=self.deployment.target,
            requests=self.requests[:num_prompts],
            configs={STOCK: SpecConfig(), **{str(i): c for i, c in enumerate(configs)}},
            repeats=repeats,
            inputs=self.inputs,
            references=self.references,
        )
        result = self.measurer.run(job)
        assert result.status == "ok", result.reason
        assert {output.judgement for output in result.outputs} == {"exact"}
        return result

    def ratio(
        self, config: SpecConfig, other: SpecConfig, num_prompts: int, repeats: int
    ) -> RatioInterval:
        """Speed of ``config`` over that of ``other``, paired by prompt."""
        result = self.measure([config, other], num_prompts, repeats)
        own, theirs = (
            [
                sum(t.seconds for t in result.timings if t.config == name and t.unit == unit)
                for unit in range(num_prompts)
            ]
            for name in "01"
        )
        return paired_ratio(theirs, own, [""] * num_prompts)

    def speeds(self, configs: list[SpecConfig], num_prompts: int, repeats: int = 1) -> Scores:
        """Speed-up over stock by configuration: the median of the prompts' ratios."""
        result = self.measure(configs, num_prompts, repeats)
        seconds: dict[str, list[float]] = {}
        for timing in result.timings:
            seconds.setdefault(timing.config, []).append(timing.seconds)
        stock = seconds[STOCK]
        return {
            config: median(s / own for s, own in zip(stock, seconds[str(i)], strict=True))
            for i, config in enumerate(configs)
        }


@pytest.fixture(scope="module")
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    cache = getattr(request.config, "cache", None)
    kept = cache.mkdir("draftsmith") if cache else tmp_path_factory.mktemp("trained")
    checkpoint = trained_checkpoint(Path(kept))
    deployment = Deployment(
        target=TargetRef(path=str(checkpoint), dtype="float32", num_threads=1),
        workload=WorkloadSpec(path=str(checkpoint / "prompts.jsonl")),
        drafters=("early_exit",),
        regime=Regime(sampling=Sampling(max_tokens=OUTPUT_TOKENS)),
        fixed={"tree": "chain", "stop_threshold": 0.0, "skip_layers": (), "draft_budget": "fixed"},
        effort=Effort(budget_s=300.0, max_trials=MAX_TRIALS, seed=1),
    )
    material = load_material(deployment)
    measurer = Measurer("here", clock=ProcessorClock())
    requests = tuple(_first_request(material, prompt) for prompt in material.tuning)
    job = MeasureJob(
        job_id="stock",
        target=deployment.target,
        requests=requests,
        configs={STOCK: SpecConfig()},
    )
    outputs = {output.request_id: output.token_ids for output in measurer.run(job).outputs}
    return Scene(
        deployment=deployment,
        material=material,
        measurer=measurer,
        requests=requests,
        references=outputs,
        inputs=DraftInputs(draft_vocab_ids=material.ranking(requests, outputs)),
    )


@pytest.fixture(scope="module")
def scan(scene: Scene) -> Scores:
    """The whole grid on two prompts, its better third on four, then the best with its neighbours
    and the next best on six, until one is clearly first: speeds of these last ones, all taken side
    by side.
    """
    grid = [_exit(*knobs) for knobs in product(EXITS, BLOCKS, VOCABS)]
    scores = scene.speeds(grid, num_prompts=2)
    third = _ranked(scores)[: len(grid) // 3]
    scores |= scene.speeds(third, num_prompts=4)
    leaders = sorted(third, key=lambda config: -scores[config])
    last = [leaders[0], *_neighbours(leaders[0]), *leaders[1 : CONTENDERS + 1]]
    for repeats in (2, 4, 8):  # longer where a stall of the machine blurred the order
        longest = scene.speeds(list(dict.fromkeys(last)), num_prompts=6, repeats=repeats)
        first, second = _ranked(longest)[:2]
        if longest[second] < longest[first] * (1 - APART):
            break
    for config in _ranked(scores | longest):
        print(f"{(scores | longest)[config]:.3f}x {config_text(config)}")
    return longest


@pytest.fixture(scope="module")
def best(scan: Scores) -> SpecConfig:
    return _ranked(scan)[0]


def test_stock_does_not_repeat_itself(scene: Scene) -> None:
    """A model stuck in a loop would make every exit right."""
    for output in scene.references.values():
        assert len(output) == OUTPUT_TOKENS
        assert len(set(output)) > OUTPUT_TOKENS // 2


def test_the_scan_has_its_best_strictly_inside_every_range(scan: Scores, best: SpecConfig) -> None:
    assert best == _exit(FIRST_EXIT, PERIOD - 1, 256), scan
    assert scan[best] > 1.0
    for neighbour in _neighbours(best):
        assert scan[neighbour] < scan[best] * (1 - APART), (neighbour, scan)


@pytest.fixture(scope="module")
def result(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    folder = tmp_path_factory.mktemp("tuned")
    database = open_database(folder / "store.db")
    try:
        with InProcessExecutor(scene.measurer) as executor:
            found = tune(
                scene.deployment,
                Repository(database),
                executor,
                RunOptions(bundle_root=folder / "bundles", material=scene.material),
            )
    finally:
        database.close()
    print(found.summary, found.ratio, found.stock_tokens_per_s, found.seconds_by_phase, sep="\n")
    for row in found.top:
        print(row["config_text"], row["num_prompts"], row["ratio"], row["low"], row["high"])
    return found


def test_the_winner_beats_stock_beyond_doubt_and_changes_nothing(result: TuneResult) -> None:
    assert result.verdict == "winner", result.summary
    assert result.ratio is not None and result.ratio.low > 1.0
    assert result.lossless.verdict == "lossless"
    assert result.lossless.num_exact == result.lossless.num_outputs > 0
    assert result.finalist == result.config


def test_tune_finds_the_best_of_the_scan(
    scene: Scene, scan: Scores, best: SpecConfig, result: TuneResult
) -> None:
    """The same exit layer, block size and draft vocabulary, none at an end of its range. Where the
    search, which sees values between the grid's, prefers others, they must keep up with the scan's
    best when both are timed side by side.
    """
    assert result.finalist is not None, result.summary
    found = _exit(*(result.finalist[name] for name in ("exit_layer", "block_size", "draft_vocab")))
    assert 1 < (found.exit_layer or 0) < NUM_LAYERS - 1
    assert 1 < found.block_size < 16
    assert VOCABS[0] < (found.draft_vocab or VOCAB_SIZE) < VOCAB_SIZE
    if found != best:
        ratio = scene.ratio(found, best, num_prompts=8, repeats=3)
        assert ratio.high >= 1 - NEAR, (found, ratio, scan, result.top)


def _exit(exit_layer: int, block_size: int, draft_vocab: int | None) -> SpecConfig:
    return SpecConfig(
        drafter="early_exit",
        exit_layer=exit_layer,
        block_size=block_size,
        draft_vocab=draft_vocab,
    )


def _ranked(scores: Scores) -> list[SpecConfig]:
    """Fastest first."""
    return sorted(scores, key=lambda config: -scores[config])


def _neighbours(config: SpecConfig) -> list[SpecConfig]:
    """One knob moved to the next value of the grid."""
    found = []
    for name, values in (("exit_layer", EXITS), ("block_size", BLOCKS), ("draft_vocab", VOCABS)):
        place = values.index(getattr(config, name))
        for other in (place - 1, place + 1):
            if 0 <= other < len(values):
                found.append(replace(config, **{name: values[other]}))
    return found


def _first_request(material: Material, prompt: Prompt) -> Request:
    request = material.request(prompt, 0, {})
    assert request is not None
    return request
