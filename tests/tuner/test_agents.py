"""Agents: what the sampler does over restarts, and how few trials find an optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from random import Random

import optuna
import pytest

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.agents.agent import Agent, Lesson, Proposal, View
from draftsmith.tuner.agents.neighbours import NeighbourAgent
from draftsmith.tuner.agents.rules import starting_points
from draftsmith.tuner.agents.sampler import SamplerAgent
from draftsmith.tuner.agents.surrogate import KAPPA, SPREAD, upper_bounds
from draftsmith.tuner.controller import NEIGHBOUR_TURNS
from draftsmith.tuner.knobs import SpaceFacts

FACTS = SpaceFacts(
    num_layers=8,
    vocab_size=8192,
    families=("ngram", "suffix", "recycle", "early_exit"),
    num_ranked=8192,
)


def smooth(config: SpecConfig) -> float:
    """Best at early exit after layer 3, block size 5, 512 ids of draft vocabulary."""
    if config.drafter != "early_exit" or config.exit_layer is None or config.tree != "chain":
        return 0.9
    vocab = {128: 3, 256: 1, 512: 0, 1024: 1, 2048: 2, 4096: 3, None: 4}[config.draft_vocab]
    off = abs(config.exit_layer - 3) * 0.08 + abs(config.block_size - 5) * 0.04 + vocab * 0.03
    return 1.6 - off - 0.1 * config.stop_threshold


def phrases(config: SpecConfig) -> float:
    """Speed-up where text comes in phrases of six tokens, of which a draft knows all but the first
    (one in four): best is early exit after layer 2, block size 5, 256 ids. Block sizes 2 and 3 are
    a ridge of their own, a third below it.
    """
    sure = 0.55 if config.draft_vocab == 128 else 1.0
    hits = [0.25, *[sure] * 4, sure if (config.exit_layer or 0) >= 2 else 0.4]
    reach = [[prod(hits[(at + i) % 6] for i in range(n)) for n in range(17)] for at in range(6)]
    place, tokens = [1 / 6] * 6, 0.0  # where in a phrase a step begins, after many steps
    for _ in range(50):
        after = [0.0] * 6
        tokens = 0.0
        for at, share in enumerate(place):
            for kept in range(config.block_size + 1):
                stops = 0.0 if kept == config.block_size else reach[at][kept + 1]
                chance = share * (reach[at][kept] - stops)
                after[(at + kept + 1) % 6] += chance
                tokens += chance * (kept + 1)
        place = after
    head = {128: 0.1, 256: 0.12, None: 1.4}.get(config.draft_vocab, 0.3)
    draft = config.block_size * (0.1 * (config.exit_layer or 0) + head)
    verify = 3.1 + 0.22 * config.block_size
    return tokens * 3.1 / (verify + draft + 0.3)


def drive(
    agents: list[Agent],
    count: int,
    known: list[SpecConfig],
    speed: Callable[[SpecConfig], float] = smooth,
    noise: Random | None = None,
) -> list[Proposal]:
    """The agents in turn; ``noise`` blurs what they learn by 6 %."""
    made: list[Proposal] = []
    learners = list(dict.fromkeys(agents))
    while len(made) < count:
        before = len(made)
        for agent in agents:
            for proposal in agent.propose(View(known=known, seconds_left=100.0), 1):
                made.append(proposal)
                known.append(proposal.config)
                blur = noise.gauss(1.0, 0.06) if noise else 1.0
                lesson = Lesson(
                    config=proposal.config,
                    optuna_number=proposal.optuna_number,
                    ratio=speed(proposal.config) * blur,
                )
                for learner in learners:
                    learner.learn(lesson)
        if len(made) == before:
            break
    return made


def sampler(storage: optuna.storages.BaseStorage | None = None, **options: object) -> SamplerAgent:
    return SamplerAgent(
        FACTS,
        study_name="search",
        seed=7,
        storage=storage,
        starts=starting_points(FACTS),
        **options,  # type: ignore[arg-type]
    )


def test_starting_points_come_first_with_their_reasons() -> None:
    starts = starting_points(FACTS)
    made = drive([sampler()], len(starts) + 2, [])
    assert [p.config for p in made[: len(starts)]] == [p.config for p in starts]
    assert {p.proposer for p in made[: len(starts)]} == {"rules"}
    assert made[-1].proposer == "sampler"


def test_b31_a_resumed_search_does_not_repeat_itself() -> None:
    """cases.md B31: seed 7, some trials, a new process with seed 7, some more."""
    storage = optuna.storages.InMemoryStorage()
    known: list[SpecConfig] = []
    first = drive([sampler(storage)], 15, known)
    again = drive([sampler(storage)], 15, known)
    configs = [p.config for p in first + again]
    assert len(set(configs)) == 30
    numbers = [p.optuna_number for p in first + again]
    assert len(set(numbers)) == 30


def test_without_memory_a_second_sampler_still_avoids_what_is_known() -> None:
    known: list[SpecConfig] = []
    first = drive([sampler()], 12, known)
    again = drive([sampler()], 12, known)
    assert not {p.config for p in first} & {p.config for p in again}


def test_running_trials_of_a_dead_driver_are_failed_and_attached_ones_kept() -> None:
    storage = optuna.storages.InMemoryStorage()
    agent = sampler(storage)
    kept, lost = agent.propose(View(known=[], seconds_left=1.0), 2)
    assert kept.optuna_number is not None
    sampler(storage, attached=[kept.optuna_number])
    study = optuna.load_study(study_name="search", storage=storage)
    states = {t.number: t.state.name for t in study.trials}
    assert states[kept.optuna_number] == "RUNNING"
    assert states[lost.optuna_number] == "FAIL"


def test_lessons_may_come_twice_and_failures_have_no_value() -> None:
    storage = optuna.storages.InMemoryStorage()
    agent = sampler(storage)
    good, bad = agent.propose(View(known=[], seconds_left=1.0), 2)
    for _ in range(2):
        agent.learn(Lesson(config=good.config, optuna_number=good.optuna_number, ratio=1.3))
        agent.learn(
            Lesson(config=bad.config, optuna_number=bad.optuna_number, ratio=None, reason="oom")
        )
    study = optuna.load_study(study_name="search", storage=storage)
    assert study.best_value == 1.3
    assert study.trials[bad.optuna_number or 0].state.name == "PRUNED"


def test_what_others_proposed_is_learned_once() -> None:
    storage = optuna.storages.InMemoryStorage()
    agent = sampler(storage)
    before = len(optuna.load_study(study_name="search", storage=storage).trials)
    lesson = Lesson(config=SpecConfig(drafter="ngram", block_size=7), optuna_number=None, ratio=1.2)
    agent.learn(lesson)
    agent.learn(lesson)
    study = optuna.load_study(study_name="search", storage=storage)
    assert len(study.trials) == before + 1 and study.best_value == 1.2


def test_an_exhausted_space_ends_the_proposals() -> None:
    tiny = SpaceFacts(num_layers=2, vocab_size=64, families=())
    agent = SamplerAgent(tiny, study_name="tiny", seed=0)
    assert agent.propose(View(known=[], seconds_left=1.0), 3) == []


def test_small_steps_find_the_optimum_of_all_three_knobs() -> None:
    starts = starting_points(FACTS)
    agents: list[Agent] = [sampler(), NeighbourAgent(FACTS, patience=len(starts))]
    made = drive(agents, 70, [])
    best = max(made, key=lambda p: smooth(p.config)).config
    assert (best.exit_layer, best.block_size, best.draft_vocab) == (3, 5, 512)


@pytest.mark.parametrize("seed", range(4))
def test_few_noisy_trials_find_the_top_of_a_ragged_landscape(seed: int) -> None:
    """With the turns and the number of trials of test_finds_the_optimum.py."""
    facts = SpaceFacts(
        num_layers=7,
        vocab_size=8192,
        families=("early_exit",),
        num_ranked=256,
        fixed={"tree": "chain", "stop_threshold": 0.0, "skip_layers": (), "draft_budget": "fixed"},
    )
    starts = starting_points(facts)
    sampler = SamplerAgent(facts, study_name="search", seed=seed, starts=starts)
    neighbours = NeighbourAgent(facts, patience=len(starts))
    agents: list[Agent] = [sampler, *[neighbours] * NEIGHBOUR_TURNS]
    made = drive(agents, 30, [], phrases, Random(seed))
    best = max((p.config for p in made), key=phrases)
    assert (best.exit_layer, best.block_size, best.draft_vocab) == (2, 5, 256)


def test_bounds_fall_with_distance_and_are_widest_where_nothing_is_known() -> None:
    """An unseen family keeps the whole spread; next to a fast configuration the bound is higher
    than next to a slow one, and a parameter's effect carries over to other values of the rest.
    """
    fast = SpecConfig(drafter="early_exit", exit_layer=3, block_size=5, draft_vocab=512)
    slow = replace(fast, exit_layer=7)
    ratios = {fast: 1.6, slow: 0.8, replace(fast, block_size=4): 1.5}
    asked = [
        replace(fast, block_size=6),
        replace(slow, block_size=6),
        replace(fast, draft_vocab=1024, block_size=12),
        replace(slow, draft_vocab=1024, block_size=12),
    ]
    bounds = upper_bounds(asked, ratios, FACTS)
    assert bounds[0] > bounds[1]
    assert bounds[2] > bounds[3]
    (unknown,) = upper_bounds([SpecConfig(drafter="ngram")], {fast: 1.0}, FACTS)
    assert unknown == pytest.approx(KAPPA * SPREAD)
    (known,) = upper_bounds([fast], {fast: 1.0}, FACTS)
    assert 0.0 < known < unknown


def test_neighbours_wait_for_the_starting_points_and_say_what_changed() -> None:
    agent = NeighbourAgent(FACTS, patience=2)
    leader = SpecConfig(drafter="early_exit", exit_layer=3, block_size=5, draft_vocab=512)
    agent.learn(Lesson(config=leader, optuna_number=None, ratio=1.5))
    view = View(known=[leader], seconds_left=1.0)
    assert agent.propose(view, 1) == []
    agent.learn(Lesson(config=SpecConfig(drafter="ngram"), optuna_number=None, ratio=None))
    (proposal,) = agent.propose(view, 1)
    assert proposal.config != leader and " to " in proposal.why
    many = agent.propose(view, 100)
    assert len({p.config for p in many}) == len(many)
    assert all(p.config.drafter == "early_exit" for p in many)
