"""The verdict under noise: how often it is wrong, and what each interval makes it say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.confirm import Confirmation, holm_confidence, judge
from draftsmith.tuner.deployment import Objective
from draftsmith.tuner.evidence import Evidence, Pair
from draftsmith.tuner.ladder import Climber
from draftsmith.tuner.objective import score
from draftsmith.tuner.result import Interval
from draftsmith.tuner.verdict import decide
from tests.support.fakeworld import World
from tests.support.tuning import Bench

SUFFIX = SpecConfig(drafter="suffix", block_size=8, match_max=24)
NGRAM = SpecConfig(drafter="ngram")


def simulated(speed: float, seed: int, *, num_prompts: int = 16, noise: float = 0.1) -> Evidence:
    rng = random.Random(seed)
    pairs = []
    for index in range(num_prompts):
        base = rng.uniform(0.5, 2.0)
        own = base / (speed * rng.lognormvariate(0.0, 0.15))
        pairs.append(
            Pair(
                request_ids=(f"p{index}",),
                category="abcd"[index % 4],
                stock_s=base * max(0.1, rng.gauss(1, noise)),
                config_s=own * max(0.1, rng.gauss(1, noise)),
                stock_prefill_s=0.1 * base,
                config_prefill_s=0.1 * own,
                num_tokens=20,
            )
        )
    return Evidence(pairs=tuple(pairs), num_exact=num_prompts)


def interval_of(evidence: Evidence, confidence: float = 0.95) -> Interval:
    interval = score(evidence, Objective(), confidence=confidence).interval
    assert interval is not None
    return interval


def test_false_winners_are_as_rare_as_the_interval_promises() -> None:
    """No gain at all, 400 confirmations: the lower end passes 1 in about 2.5 % of them."""
    mean_gain = 2.718281828 ** (0.15**2 / 2)  # of the lognormal spread over prompts, taken out
    wrong = sum(
        judge(interval_of(simulated(1.0 / mean_gain, seed))) == "faster" for seed in range(400)
    )
    assert wrong <= 20


def test_a_clear_gain_is_found() -> None:
    found = sum(judge(interval_of(simulated(1.3, seed))) == "faster" for seed in range(50))
    assert found >= 48


def test_holm_asks_more_of_each_of_two_finalists() -> None:
    assert holm_confidence(1) == pytest.approx(0.95)
    assert holm_confidence(2) == pytest.approx(0.975)
    evidence = simulated(1.1, 3)
    assert interval_of(evidence, 0.975).low < interval_of(evidence, 0.95).low


def test_noise_without_gain_is_inconclusive_and_off_stays(bench: Bench) -> None:
    """Lucky on the tuning prompts, no gain on the others: not shown, so the simpler one stays."""
    verdicts = []
    for seed in range(3):
        world = World(speed=lambda config: 1.0, noise=0.15, seed=seed)
        result = bench.run(world, seed=seed, budget_s=500, max_trials=6)
        verdicts.append(result.verdict)
        assert result.config == {"drafter": "none"} or result.verdict == "winner"
    assert "winner" not in verdicts
    assert "inconclusive" in verdicts


def test_both_intervals_of_two_finalists_are_held_to_holm(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "vllm.json"
    file.write_text('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}')
    world = World(speed=lambda c: 1.4 if c.drafter == "suffix" else 1.1, noise=0.05)
    result = bench.run(world, finalists=2, budget_s=900, max_trials=10, incumbent=file)
    found = {
        item.against: item.interval for item in result.comparisons if "suffix" in item.config_text
    }
    assert found["stock"].confidence == found["incumbent"].confidence == pytest.approx(0.975)
    assert result.ratio is not None and result.ratio.confidence == pytest.approx(0.975)


def test_a_second_finalist_is_tried_only_when_asked_for(bench: Bench) -> None:
    def speed(config: SpecConfig) -> float:
        return 1.1 if config.drafter == "suffix" else 0.8

    world = World(speed=speed, lossy=lambda config: config.drafter == "recycle", noise=0.3)
    result = bench.run(world, finalists=2, seed=3, max_trials=8)
    confirmed = {config for config in world.measured("confirm")}
    assert len(confirmed) <= 2
    for item in result.comparisons:
        assert item.interval.low <= item.interval.ratio <= item.interval.high


@pytest.mark.parametrize(
    ("low", "high", "verdict", "config"),
    [
        (1.05, 1.4, "winner", SUFFIX),
        (0.95, 1.2, "inconclusive", SpecConfig()),
        (0.7, 0.98, "off", SpecConfig()),
        (1.0, 1.2, "inconclusive", SpecConfig()),
        (1.001, 1.007, "off", SpecConfig()),  # shown faster, but within one per cent of off
        (1.001, 1.04, "winner", SUFFIX),
    ],
)
def test_the_interval_alone_decides(
    low: float, high: float, verdict: str, config: SpecConfig
) -> None:
    made = confirmation(SUFFIX, low, high)
    decision = decide([made], [], None)
    assert decision.verdict == verdict
    assert decision.config == config


@pytest.mark.parametrize(
    ("direct", "held", "verdict"),
    [
        ((1.02, 1.1), (1.0, 1.2), "winner"),
        ((0.97, 1.1), (1.0, 1.2), "incumbent stays"),
        ((0.97, 1.1), (0.7, 0.9), "winner"),  # the incumbent is slower than stock
    ],
)
def test_against_the_incumbent(
    direct: tuple[float, float], held: tuple[float, float], verdict: str
) -> None:
    made = confirmation(SUFFIX, 1.1, 1.3, direct=direct, held=held)
    assert decide([made], [], NGRAM).verdict == verdict


def test_a_lossy_incumbent_does_not_stay() -> None:
    from draftsmith.tuner.objective import Score

    climber = Climber(config=NGRAM, score=Score(feasible=False, reason="lossy"))
    assert decide([], [climber], NGRAM).verdict == "off"


def test_a_finalist_that_fails_is_no_winner() -> None:
    made = Confirmation(config=SUFFIX, failure="oom: too much")
    decision = decide([made], [], None)
    assert decision.verdict == "inconclusive" and "oom" in decision.summary


def confirmation(
    config: SpecConfig,
    low: float,
    high: float,
    *,
    direct: tuple[float, float] | None = None,
    held: tuple[float, float] | None = None,
) -> Confirmation:
    from draftsmith.tuner.objective import Score

    def span(ends: tuple[float, float]) -> Interval:
        return Interval(ratio=sum(ends) / 2, low=ends[0], high=ends[1], num_prompts=16)

    return Confirmation(
        config=config,
        score=Score(feasible=True, interval=span((low, high))),
        against_incumbent=span(direct) if direct else None,
        incumbent_score=Score(feasible=True, interval=span(held)) if held else None,
    )
