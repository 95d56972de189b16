"""Drafting with a model: what is drafted equals what plain forwards over each path would choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from draftsmith.engine.batch import causal_rows
from draftsmith.engine.drafters.draft_model import DraftModelDrafter
from draftsmith.engine.model.model import Model
from draftsmith.engine.sampling import RowContext, scores
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import RowBatch, Sampling, SlotView, SpecConfig
from tests.support.drafting import Bench, ManualSlot, longest_path, requests_for
from tests.support.tinymodels import tiny_decoder

VOCAB = 48
PROMPT = [5, 9, 31, 7, 12]
GREEDY = Sampling(max_tokens=64, ignore_eos=True)
WARM = Sampling(max_tokens=64, ignore_eos=True, temperature=0.8, seed=4)
KEPT = tuple(range(2, 34, 2))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target() -> Model:
    return tiny_decoder(2, num_layers=3, vocab_size=VOCAB)


def plain_scores(
    model: Model,
    tokens: Sequence[int],
    sampling: Sampling,
    prompt_len: int,
    layers: tuple[int, ...] | None,
    exact_prefix: int,
) -> torch.Tensor:
    """Scores ``[V]`` after ``tokens``: the first ``exact_prefix`` through every layer, the rest
    through ``layers``, a token at a time.
    """
    cache = model.new_cache(num_slots=1, capacity=64)
    slot = cache.allocate()
    model.forward(causal_rows(slot, tokens[:exact_prefix], 0), cache)
    cache.keep(slot, range(exact_prefix))
    for position in range(exact_prefix, len(tokens)):
        rows = causal_rows(slot, [tokens[position]], position)
        hidden = model.forward(rows, cache, layers=layers).last[0]
        cache.keep(slot, [0])
    logits = model.head(hidden)
    context = RowContext(sampling, prompt_len, tokens)
    return scores(logits, [context], eos_ids=model.info.eos_token_ids)[0]


def path_of(tree: DraftTree, node: int) -> list[int]:
    tokens: list[int] = []
    while node >= 0:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return tokens


def config_for(drafter: str, **fields: object) -> SpecConfig:
    own = {"exit_layer": 2} if drafter == "early_exit" else {"draft_model": "tiny"}
    return SpecConfig(drafter=drafter, **own, **fields)  # type: ignore[arg-type]


def bench_for(target: Model, config: SpecConfig, num_slots: int = 1) -> Bench:
    return Bench(
        target,
        config,
        num_slots=num_slots,
        draft_model=tiny_decoder(7, num_layers=1, vocab_size=VOCAB),
        draft_vocab_ids=KEPT,
    )


def plain_for(bench: Bench, tokens: Sequence[int], sampling: Sampling) -> torch.Tensor:
    """What the drafter of ``bench`` must see after PROMPT + drafted path."""
    if bench.config.drafter == "draft_model":
        draft = bench.context.draft_model
        assert draft is not None
        return plain_scores(draft, tokens, sampling, len(PROMPT), None, 1)
    return plain_scores(
        bench.target, tokens, sampling, len(PROMPT), (0, 1), exact_prefix=len(PROMPT) - 1
    )


@pytest.mark.parametrize("drafter", ["early_exit", "draft_model"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["T0", "T"])
@pytest.mark.parametrize("draft_vocab", [None, len(KEPT)], ids=["whole", "trimmed"])
def test_static_tree_holds_the_ranked_choices_of_plain_forwards(
    target: Model, drafter: str, sampling: Sampling, draft_vocab: int | None
) -> None:
    config = config_for(drafter, tree="static", branching=(3, 2, 1), draft_vocab=draft_vocab)
    bench = bench_for(target, config)
    assert bench.drafter is not None
    tree = ManualSlot(bench.drafter, bench.context, PROMPT, sampling).propose(99)
    assert len(tree) == 3 + 6 + 6
    for node in (-1, *range(9)):
        values = plain_for(bench, [*PROMPT, *path_of(tree, node)], sampling)
        if draft_vocab is not None:
            outside = torch.ones(VOCAB, dtype=torch.bool)
            outside[list(KEPT)] = False
            values = values.masked_fill(outside, -torch.inf)
        children = [tree.tokens[i] for i in tree.children(node)]
        assert children == values.topk(len(children)).indices.tolist()


@pytest.mark.parametrize("drafter", ["early_exit", "draft_model"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["T0", "T"])
def test_dynamic_tree_holds_the_best_paths_of_the_beam(
    target: Model, drafter: str, sampling: Sampling
) -> None:
    """EAGLE-2 by plain forwards: expand the best 3 of each level, keep the best 7 of all."""
    config = config_for(drafter, tree="dynamic", block_size=3, tree_top_k=3, tree_budget=7)
    bench = bench_for(target, config)
    assert bench.drafter is not None
    tree = ManualSlot(bench.drafter, bench.context, PROMPT, sampling).propose(99)
    pool: dict[tuple[int, ...], float] = {}
    beam: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(3):
        found = {}
        for path, score in beam.items():
            shares = plain_for(bench, [*PROMPT, *path], sampling).log_softmax(-1)
            best = shares.topk(3)
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                found[(*path, token)] = score + value
        pool |= found
        beam = dict(sorted(found.items(), key=lambda item: -item[1])[:3])
    expected = sorted(pool, key=lambda path: -pool[path])[:7]
    assert [tuple(path_of(tree, node)) for node in range(len(tree))] == expected


def test_stop_threshold_keeps_the_uncertain_token_and_goes_no_further(target: Model) -> None:
    long = config_for("early_exit", block_size=8)
    bench = bench_for(target, long)
    assert bench.drafter is not None
    full = ManualSlot(bench.drafter, bench.context, PROMPT, GREEDY).propose(99)
    tops = [
        float(plain_for(bench, [*PROMPT, *full.tokens[:i]], GREEDY).softmax(-1).max())
        for i in range(8)
    ]
    threshold = sorted(tops)[2] + 1e-6  # three of the eight rows are under it
    first = next(i for i, top in enumerate(tops) if top < threshold)
    stopping = bench_for(target, config_for("early_exit", block_size=8, stop_threshold=threshold))
    assert stopping.drafter is not None
    tree = ManualSlot(stopping.drafter, stopping.context, PROMPT, GREEDY).propose(99)
    assert tree.tokens == full.tokens[: first + 1]


def test_a_draft_ends_with_a_token_that_ends_the_request(target: Model) -> None:
    bench = bench_for(target, config_for("early_exit", block_size=6))
    assert bench.drafter is not None
    full = ManualSlot(bench.drafter, bench.context, PROMPT, GREEDY).propose(99)
    stop = Sampling(max_tokens=64, ignore_eos=True, stop_token_ids=(full.tokens[2],))
    other = bench_for(target, config_for("early_exit", block_size=6))
    assert other.drafter is not None
    tree = ManualSlot(other.drafter, other.context, PROMPT, stop).propose(99)
    assert tree.tokens == full.tokens[: full.tokens.index(full.tokens[2]) + 1]


def test_skipping_layers_runs_the_others(target: Model) -> None:
    config = SpecConfig(drafter="early_exit", skip_layers=(1,), block_size=3)
    bench = bench_for(target, config)
    assert bench.drafter is not None
    tree = ManualSlot(bench.drafter, bench.context, PROMPT, GREEDY).propose(99)
    for i, token in enumerate(tree.tokens):
        values = plain_scores(
            target, [*PROMPT, *tree.tokens[:i]], GREEDY, len(PROMPT), (0, 2), len(PROMPT) - 1
        )
        assert token == int(values.argmax())


def test_a_full_cache_gives_a_smaller_draft(target: Model) -> None:
    config = config_for("early_exit", block_size=6)
    bench = Bench(target, config, capacity=len(PROMPT) + 2)
    assert bench.drafter is not None
    tree = ManualSlot(bench.drafter, bench.context, PROMPT, GREEDY).propose(99)
    assert len(tree) == 3  # rows for the root and two nodes, so three forwards


class _LengthWatch:
    """The draft model, noting what its cache holds whenever its root is fed."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.info = model.info
        self.new_cache = model.new_cache
        self.head = model.head
        self.top = model.top
        self.trim_head = model.trim_head
        self.widths: list[int] = []

    def forward(self, rows: RowBatch, cache, **options):  # type: ignore[no-untyped-def]
        if rows.offset == 0:
            self.widths.append(rows.widths[0])
        return self._model.forward(rows, cache, **options)


def test_b3_draft_equal_to_the_target_is_accepted_whole_in_every_round() -> None:
    target = tiny_decoder(3, num_layers=2, vocab_size=VOCAB)
    draft = _LengthWatch(tiny_decoder(3, num_layers=2, vocab_size=VOCAB))
    config = SpecConfig(drafter="draft_model", draft_model="same", block_size=4)
    bench = Bench(target, config, draft_model=draft)
    requests = requests_for([PROMPT], Sampling(max_tokens=64, ignore_eos=True))
    (done,) = bench.run(requests)
    (stock,) = Bench(target, SpecConfig()).run(requests)
    assert done.token_ids == stock.token_ids
    assert len(done.token_ids) == 64
    for step in done.steps:
        assert step.accepted == step.drafted
    # The prompt and the root first; then always the last proposal, never fed before, and the root.
    assert draft.widths[0] == len(PROMPT) + 1
    assert set(draft.widths[1:]) == {2}


@pytest.mark.parametrize("right", range(5))
@pytest.mark.parametrize("shape", ["chain", "static", "dynamic"])
def test_b3_draft_cache_holds_all_but_the_newest_token_each_round(
    target: Model, right: int, shape: str
) -> None:
    config = config_for(
        "draft_model",
        tree=shape,
        block_size=4,
        branching=(2, 2, 1, 1) if shape == "static" else (),
        tree_budget=12,
    )
    bench = bench_for(target, config)
    drafter = bench.drafter
    assert isinstance(drafter, DraftModelDrafter)
    slot = ManualSlot(drafter, bench.context, PROMPT, GREEDY)
    for _ in range(6):
        tree = slot.propose(99)
        assert drafter.cache.lengths[slot.slot] == len(slot.tokens) - 1
        fresh = bench_for(target, config)
        assert fresh.drafter is not None
        mirror = ManualSlot(fresh.drafter, fresh.context, slot.tokens, GREEDY)
        again = fresh.drafter.propose(
            [SlotView(mirror.slot, slot.tokens, len(PROMPT), GREEDY, 99)]
        )[0]
        assert (again.tokens, again.parents) == (tree.tokens, tree.parents)
        path = longest_path(tree)[:right]
        below = {tree.tokens[i] for i in tree.children(path[-1] if path else -1)}
        slot.commit(tree, path, next(token for token in range(2, VOCAB) if token not in below))


def test_long_prompts_are_caught_up_in_chunks(target: Model, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    prompts = [[(7 * i) % VOCAB for i in range(n)] for n in (23, 4)]
    config = config_for("draft_model", block_size=3)
    whole = bench_for(target, config, num_slots=2)
    outputs = whole.run(requests_for(prompts, Sampling(max_tokens=10, ignore_eos=True)))
    monkeypatch.setattr("draftsmith.engine.drafters.draft_model.CATCH_UP_ROWS", 5)
    chunked = bench_for(target, config, num_slots=2)
    again = chunked.run(requests_for(prompts, Sampling(max_tokens=10, ignore_eos=True)))
    assert whole.recorder is not None
    assert chunked.recorder is not None
    assert chunked.recorder.proposals == whole.recorder.proposals
    assert [done.token_ids for done in again] == [done.token_ids for done in outputs]


def test_b24_a_trim_that_drops_eos_changes_no_output() -> None:
    target = tiny_decoder(5, num_layers=3, vocab_size=VOCAB)
    free = Sampling(max_tokens=12, ignore_eos=True)
    (output,) = Bench(target, SpecConfig()).run(requests_for([PROMPT], free))
    ending = Sampling(max_tokens=12, ignore_eos=True, stop_token_ids=(output.token_ids[6],))
    requests = requests_for([PROMPT], ending)
    (stock,) = Bench(target, SpecConfig()).run(requests)
    kept = tuple(token for token in range(VOCAB) if token != output.token_ids[6])
    config = config_for("early_exit", draft_vocab=VOCAB - 1, block_size=4)
    (done,) = Bench(target, config, draft_vocab_ids=kept).run(requests)
    assert done.token_ids == stock.token_ids
    assert done.stop_reason == stock.stop_reason == "stop_token"
