"""One suite for every drafter in every shape that it draws."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.registry import DRAFTER_NAMES, make_drafter
from draftsmith.engine.model.model import Model
from draftsmith.engine.types import Sampling, SpecConfig
from tests.support.drafting import Bench, ManualSlot, check_tree, longest_path, requests_for
from tests.support.tinymodels import tiny_decoder

VOCAB = 64
PROMPTS = (
    (5, 6, 7, 8, 5, 6, 7, 9, 5, 6),
    (11, 12, 13, 11, 12, 13, 11, 12, 13, 14, 11, 12),
    (40,),
)
GREEDY = Sampling(max_tokens=16, ignore_eos=True)
SAMPLED = Sampling(max_tokens=12, ignore_eos=True, temperature=0.7, top_p=0.95, seed=3)
PENALISED = Sampling(
    max_tokens=10, temperature=0.6, seed=9, repetition_penalty=1.2, frequency_penalty=0.3
)

STATIC = {"tree": "static", "branching": (3, 2, 1)}
PROGRAMME = {"tree": "static", "tree_budget": 9, "block_size": 4}
DYNAMIC = {"tree": "dynamic", "tree_budget": 9, "tree_top_k": 3, "block_size": 4}
SUFFIX = {"drafter": "suffix", "match_max": 16, "min_token_prob": 0.05, "spec_factor": 2.0}
EXIT = {"drafter": "early_exit", "exit_layer": 2}
MODEL = {"drafter": "draft_model", "draft_model": "tiny"}

CASES: dict[str, dict[str, object]] = {
    "ngram": {"drafter": "ngram"},
    "ngram_long": {"drafter": "ngram", "match_min": 2, "match_max": 5, "block_size": 8},
    "suffix": SUFFIX,
    "ngram_backed": {"drafter": "ngram", "match_min": 2, "fallback_size": 3},
    "suffix_backed": {**SUFFIX, "match_min": 3, "fallback_size": 2},
    "suffix_dynamic_backed": {**SUFFIX, **DYNAMIC, "fallback_size": 3},
    "suffix_dynamic": {**SUFFIX, **DYNAMIC},
    "recycle": {"drafter": "recycle"},
    "recycle_static": {"drafter": "recycle", **STATIC},
    "recycle_programme": {"drafter": "recycle", "recycle_k": 3, **PROGRAMME},
    "early_exit": EXIT,
    "early_exit_skip": {"drafter": "early_exit", "skip_layers": (1,)},
    "early_exit_static": {**EXIT, **STATIC},
    "early_exit_programme": {**EXIT, **PROGRAMME},
    "early_exit_dynamic": {**EXIT, **DYNAMIC},
    "early_exit_trimmed": {**EXIT, "draft_vocab": 24},
    "early_exit_trimmed_dynamic": {**EXIT, **DYNAMIC, "draft_vocab": 24},
    "early_exit_stop": {**EXIT, "stop_threshold": 0.9, "block_size": 6},
    "early_exit_stop_static": {**EXIT, **STATIC, "stop_threshold": 0.9},
    "draft_model": MODEL,
    "draft_model_static": {**MODEL, **STATIC},
    "draft_model_dynamic": {**MODEL, **DYNAMIC},
    "draft_model_trimmed": {**MODEL, "draft_vocab": 24, "block_size": 3},
    "scripted": {"drafter": "scripted"},
    "scripted_wrong": {"drafter": "scripted", "script": "wrong"},
    "scripted_mixed": {"drafter": "scripted", "script": "mixed", "script_right": 2},
    "scripted_random": {"drafter": "scripted", "script": "random", "accept_p": 0.6},
    "scripted_static": {"drafter": "scripted", **STATIC},
    "scripted_random_static": {
        "drafter": "scripted",
        "script": "random",
        "accept_p": 0.6,
        **STATIC,
    },
}
DISTRIBUTION = {
    f"{name}_{verifier}": {**CASES[name], "verifier": verifier}
    for name in (
        "ngram",
        "ngram_backed",
        "early_exit",
        "early_exit_trimmed",
        "draft_model",
        "draft_model_trimmed",
    )
    for verifier in ("rejection", "block")
}
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by sharing their work between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def target() -> Model:
    return tiny_decoder(0, num_layers=3, vocab_size=VOCAB)


@cache
def draft() -> Model:
    """The target's lower half in effect: another random model, so that it is often wrong."""
    return tiny_decoder(1, num_layers=1, vocab_size=VOCAB)


@cache
def stock(sampling: Sampling) -> dict[tuple[int, ...], tuple[int, ...]]:
    bench = Bench(target(), SpecConfig())
    outputs = bench.run(requests_for(PROMPTS, sampling))
    return {prompt: done.token_ids for prompt, done in zip(PROMPTS, outputs, strict=True)}


def bench_for(
    fields: dict[str, object],
    *,
    sampling: Sampling = GREEDY,
    num_slots: int = 1,
    nodes: int | None = None,
) -> Bench:
    return Bench(
        target(),
        SpecConfig(**fields),  # type: ignore[arg-type]
        num_slots=num_slots,
        nodes=nodes,
        draft_model=draft(),
        draft_vocab_ids=tuple(range(VOCAB - 1, 20, -1)),
        forced_ids=target().info.eos_token_ids,
        references=stock(sampling),
    )


def test_every_registered_drafter_is_in_the_suite() -> None:
    assert {str(case["drafter"]) for case in CASES.values()} == set(DRAFTER_NAMES) - {"none"}


@every_case
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED], ids=["T0", "T", "penalised"])
def test_coupled_output_is_stock_and_twice_the_same(name: str, sampling: Sampling) -> None:
    requests = requests_for(PROMPTS, sampling)
    runs = []
    for _ in range(2):
        bench = bench_for(CASES[name], sampling=sampling, num_slots=2)
        outputs = bench.run(requests)
        assert {
            prompt: done.token_ids for prompt, done in zip(PROMPTS, outputs, strict=True)
        } == stock(sampling)
        assert bench.recorder is not None
        runs.append(bench.recorder.proposals)
    assert runs[0] == runs[1]


@every_case
def test_b1_reset_forgets_so_that_a_prompt_drafts_alike_whenever_it_comes(name: str) -> None:
    """cases.md B1: one prompt three times, and A, B against B, A."""
    first, second = PROMPTS[:2]
    used = bench_for(CASES[name])
    runs = []
    for prompt in (first, first, second, first):
        assert used.recorder is not None
        used.recorder.next_run()
        (done,) = used.run(requests_for([prompt], GREEDY))
        counts = [step.accepted for step in done.steps]
        runs.append((used.recorder.proposals[-1], counts))
    assert runs[0] == runs[1] == runs[3]
    fresh = bench_for(CASES[name])
    fresh.run(requests_for([second], GREEDY))
    assert fresh.recorder is not None
    assert runs[2][0] == fresh.recorder.proposals[0]


@every_case
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["T0", "T"])
def test_slots_are_independent(name: str, sampling: Sampling) -> None:
    together = bench_for(CASES[name], sampling=sampling, num_slots=3)
    together.run(requests_for(PROMPTS, sampling))
    assert together.recorder is not None
    for prompt in PROMPTS:
        alone = bench_for(CASES[name], sampling=sampling)
        alone.run(requests_for([prompt], sampling))
        assert alone.recorder is not None
        assert together.recorder.proposals[0][prompt] == alone.recorder.proposals[0][prompt]


@every_case
@pytest.mark.parametrize("nodes", [1, 3])
def test_smaller_budgets_are_respected(name: str, nodes: int) -> None:
    bench = bench_for(CASES[name], num_slots=2, nodes=nodes)
    outputs = bench.run(requests_for(PROMPTS, GREEDY))  # the recorder checks every tree
    for prompt, done in zip(PROMPTS, outputs, strict=True):
        assert done.token_ids == stock(GREEDY)[prompt]
        assert all(step.drafted <= nodes for step in done.steps)


@every_case
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=["none", "partial", "full"])
def test_proposals_follow_the_commits_whatever_is_accepted(name: str, share: float) -> None:
    """After every commit a drafter that reads tokens only must draft what a fresh one drafts."""
    bench = bench_for(CASES[name], num_slots=2)
    assert bench.drafter is not None
    slot = ManualSlot(bench.drafter, bench.context, PROMPTS[1], GREEDY)
    for step in range(6):
        tree = slot.propose(8)
        check_tree(tree, 8, VOCAB)
        if not bench.drafter.needs_logits:
            fresh = fresh_proposal(bench, slot, 8)
            assert (tree.tokens, tree.parents) == (fresh.tokens, fresh.parents)
        path = longest_path(tree)
        path = path[: round(share * len(path))]
        below = {tree.tokens[i] for i in tree.children(path[-1] if path else -1)}
        bonus = next(t for t in (13, 11, 12, *range(VOCAB)) if t not in below and t != step)
        slot.commit(tree, path, bonus)


def fresh_proposal(bench: Bench, slot: ManualSlot, budget: int):  # type: ignore[no-untyped-def]
    cache = bench.target.new_cache(num_slots=2, capacity=192)
    inputs = bench.context
    context = DrafterContext(
        target=inputs.target,
        cache=cache,
        draft_model=inputs.draft_model,
        draft_vocab_ids=inputs.draft_vocab_ids,
        forced_ids=inputs.forced_ids,
        references=inputs.references,
    )
    drafter = make_drafter(bench.config, context)
    assert drafter is not None
    mirror = ManualSlot(drafter, context, slot.tokens[: len(PROMPTS[1])], GREEDY)
    mirror.commit(mirror.propose(0), [], 0)
    mirror.tokens[:] = slot.tokens
    context.cache.crop(mirror.slot, 0)
    drafter.reset(mirror.slot)
    mirror._feed()
    return mirror.propose(budget)


@pytest.mark.parametrize("name", DISTRIBUTION)
def test_sampled_chains_carry_their_distribution_and_repeat(name: str) -> None:
    runs = []
    for _ in range(2):
        bench = bench_for(DISTRIBUTION[name], sampling=SAMPLED, num_slots=2)
        outputs = bench.run(requests_for(PROMPTS, SAMPLED))
        assert bench.recorder is not None
        trees = [
            (done, tree)
            for of_prompt in bench.recorder.proposals[0].values()
            for done, tree in of_prompt
        ]
        if not name.startswith("ngram"):
            assert all(tree.probs is not None for _, tree in trees)
        runs.append(
            (
                [done.token_ids for done in outputs],
                [(n, tree.tokens, tree.parents) for n, tree in trees],
            )
        )
    assert runs[0] == runs[1]


def test_oracle_is_always_right_and_wrong_never() -> None:
    for fields, rate in (({"drafter": "scripted"}, 1.0), (CASES["scripted_wrong"], 0.0)):
        outputs = bench_for(fields).run(requests_for(PROMPTS, GREEDY))
        drafted = sum(step.drafted for done in outputs for step in done.steps)
        accepted = sum(step.accepted for done in outputs for step in done.steps)
        assert drafted > 0
        assert accepted == rate * drafted
