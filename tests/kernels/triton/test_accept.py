"""Verification in Triton and in its reference: the verdicts of ``engine.verify``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftsmith.engine.sampling import RowContext, probabilities
from draftsmith.engine.trees.tree import DraftTree, chain
from draftsmith.engine.types import Sampling
from draftsmith.engine.verify import verify
from draftsmith.kernels.accept import (
    NOTHING,
    Accepted,
    Drafts,
    Draws,
    Rule,
    accept,
    cost,
    sampled_cost,
)
from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.configurations import Configuration, use_configurations
from draftsmith.kernels.errors import KernelInputError
from tests.support.traffic import count_traffic

SMALL = {"accept": Configuration(blocks={"SPLIT": 8, "BLOCK": 4})}
PROMPT = 2
FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def trees(draw: Any, vocab: int, chains: bool = False) -> DraftTree:
    """Up to seven nodes; siblings carry distinct tokens."""
    tokens: list[int] = []
    parents: list[int] = []
    for node in range(draw(st.integers(0, 6))):
        parent = node - 1 if chains else draw(st.integers(-1, node - 1))
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        tokens.append(draw(st.sampled_from(sorted(set(range(vocab)) - taken))))
        parents.append(parent)
    return DraftTree(tuple(tokens), tuple(parents))


def batch_of(drafted: Sequence[DraftTree]) -> Drafts:
    return Drafts.of([(tree.tokens, tree.parents) for tree in drafted])


def draws_of(samplings: Sequence[Sampling], positions: Sequence[int]) -> Draws:
    seeds, temperatures = [s.seed for s in samplings], [s.temperature for s in samplings]
    return Draws.of(seeds, positions, temperatures)


def leaning_logits(drafts: Drafts, vocab: int, seed: int) -> torch.Tensor:
    """Whole numbers, so that there are ties; each row leans towards its children's tokens."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (drafts.num_rows, vocab), generator=generator).float()
    for row, parent in enumerate(drafts.parents.tolist()):
        if parent >= 0:
            above = int(drafts.starts[drafts.sequences[row]]) + parent
            logits[above, drafts.tokens[row]] += 2.0
    return logits


def contexts_of(samplings: Sequence[Sampling], positions: Sequence[int]) -> list[RowContext]:
    return [
        RowContext(sampling, PROMPT, [0] * (PROMPT + position))
        for sampling, position in zip(samplings, positions, strict=True)
    ]


def rows_of(drafts: Drafts) -> list[slice]:
    return list(itertools.starmap(slice, itertools.pairwise(drafts.starts.tolist())))


def assert_verdicts(
    found: Accepted,
    drafts: Drafts,
    drafted: Sequence[DraftTree],
    logits: torch.Tensor,
    contexts: Sequence[RowContext],
    rule: Rule = "coupled",
) -> None:
    for index, (tree, rows) in enumerate(zip(drafted, rows_of(drafts), strict=True)):
        wanted = verify(logits[rows].float(), tree, contexts[index], verifier=rule)
        length = int(found.lengths[index])
        assert tuple(found.paths[index, :length].tolist()) == wanted.path
        assert (found.paths[index, length:] == -1).all()
        assert int(found.bonuses[index]) == wanted.bonus


def alike(one: Accepted, other: Accepted) -> bool:
    pairs = ((one.paths, other.paths), (one.lengths, other.lengths), (one.bonuses, other.bonuses))
    return all(torch.equal(*pair) for pair in pairs)


@given(st.lists(trees(9), min_size=1, max_size=5), st.integers(0, 2**32))
@FEW
def test_trees_are_followed_as_the_engine_does(
    triton: None, poisoned_empty: None, drafted: list[DraftTree], seed: int
) -> None:
    drafts = batch_of(drafted)
    logits = leaning_logits(drafts, 9, seed)
    samplings = [
        Sampling(temperature=(0.0, 0.5, 1.3)[(seed + i) % 3], seed=2**64 - 1 - seed - i)
        for i in range(len(drafted))
    ]
    positions = [seed % 7 + 3 * i for i in range(len(drafted))]
    draws, contexts = draws_of(samplings, positions), contexts_of(samplings, positions)
    with use_configurations(SMALL):
        found = accept(logits, drafts, draws)
    assert_verdicts(found, drafts, drafted, logits, contexts)
    with use_backend("reference"):
        assert_verdicts(accept(logits, drafts, draws), drafts, drafted, logits, contexts)


@given(
    st.lists(trees(9, chains=True), min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.sampled_from(["rejection", "block"]),
    st.booleans(),
)
@FEW
def test_chains_are_judged_as_the_engine_does(
    triton: None,
    poisoned_empty: None,
    drafted: list[DraftTree],
    seed: int,
    rule: Rule,
    one_hot: bool,
) -> None:
    """Proposals near the target's law: some drafts are kept. The fourth sequence is at T = 0."""
    drafts = batch_of(drafted)
    logits = leaning_logits(drafts, 9, seed)
    samplings = [
        Sampling(temperature=0.0 if i == 3 else 0.8, seed=seed + i) for i in range(len(drafted))
    ]
    positions = [seed % 5 + i for i in range(len(drafted))]
    contexts = contexts_of(samplings, positions)
    p = torch.cat(
        [
            probabilities(logits[rows], [context] * (rows.stop - rows.start))
            for rows, context in zip(rows_of(drafts), contexts, strict=True)
        ]
    )
    noise = torch.rand(p.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = p + 0.2 * noise
    q /= q.sum(1, keepdim=True)
    judged = [
        tree if one_hot else DraftTree(tree.tokens, tree.parents, q[rows][: len(tree)])
        for tree, rows in zip(drafted, rows_of(drafts), strict=True)
    ]
    arguments = dict(rule=rule, probabilities=p, proposal=None if one_hot else q)
    draws = draws_of(samplings, positions)
    with use_configurations(SMALL):
        found = accept(logits, drafts, draws, **arguments)
    assert_verdicts(found, drafts, judged, logits, contexts, rule)
    with use_backend("reference"):
        assert alike(accept(logits, drafts, draws, **arguments), found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_vocabulary_of_odd_size_in_any_type(dtype: torch.dtype, triton: None) -> None:
    """Several splits and blocks, most of which cannot win; the choice is the full draw's."""
    drafted = [DraftTree((5, 7, 700), (-1, 0, 0)), chain((1,))]
    drafts = batch_of(drafted)
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(drafts.num_rows, 1003, generator=generator) * 4).to(dtype)
    logits[0, 5] = 60.0  # the winner of its row: later blocks draw no noise
    samplings = [Sampling(temperature=0.7, seed=3), Sampling(temperature=1.0, seed=2**63)]
    blocks = {"accept": Configuration(blocks={"SPLIT": 512, "BLOCK": 128})}
    with use_configurations(blocks):
        found = accept(logits, drafts, draws_of(samplings, [0, 11]))
    assert_verdicts(found, drafts, drafted, logits, contexts_of(samplings, [0, 11]))
    assert int(found.lengths[0]) >= 1


def test_rows_that_leave_nothing_to_choose(triton: None) -> None:
    """NaN anywhere in a row, or minus infinity everywhere; infinity is a choice."""
    drafts = Drafts.of([((), ())] * 4 + [((2,), (-1,))])
    logits = torch.zeros(6, 20)
    logits[0, 17] = torch.nan
    logits[1] = -torch.inf
    logits[2, 6] = torch.inf
    logits[3, 6], logits[3, 19] = torch.inf, torch.nan
    logits[4, 2], logits[5, 0] = 9.0, torch.nan
    for temperature in (0.0, 1.0):
        draws = Draws.of([1] * 5, [0] * 5, [temperature] * 5)
        with use_configurations(SMALL):
            found = accept(logits, drafts, draws)
        assert found.bonuses.tolist() == [NOTHING, NOTHING, 6, NOTHING, NOTHING]
        assert found.lengths.tolist() == [0, 0, 0, 0, 1]
        with use_backend("reference"):
            assert alike(accept(logits, drafts, draws), found)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_row_of_nan_ends_the_drafts_that_can_be_judged(rule: Rule, triton: None) -> None:
    drafts = Drafts.of([((1, 1, 1), (-1, 0, 1))] * 2)
    p = torch.zeros(8, 6, dtype=torch.float64)
    p[:, 1] = 1.0
    p[2], p[7] = torch.nan, torch.nan
    draws = Draws.of([3, 4], [0, 0], [1.0, 1.0])
    with use_configurations(SMALL):
        found = accept(torch.zeros(8, 6), drafts, draws, rule=rule, probabilities=p)
    assert found.lengths.tolist() == [2, 3] and found.bonuses.tolist() == [NOTHING] * 2
    with use_backend("reference"):
        wanted = accept(torch.zeros(8, 6), drafts, draws, rule=rule, probabilities=p)
    assert alike(found, wanted)


def test_empty_sequences_and_padding_rows_are_inert(triton: None, poisoned_empty: None) -> None:
    """A bucket's padding: rows of no sequence and sequences of no rows, NaN in all of them."""
    drafts = Drafts.of([((4, 2), (-1, 0)), ((3,), (-1,))])
    logits = leaning_logits(drafts, 9, 1)
    draws = Draws.of([1, 2], [5, 6], [1.0, 0.0])
    with use_configurations(SMALL):
        alone = accept(logits, drafts, draws)
        padding = torch.full((3,), -1, dtype=torch.int32)
        padded = Drafts(
            starts=torch.cat((drafts.starts, drafts.starts[-1:].expand(6))),
            sequences=torch.cat((drafts.sequences, padding)),
            tokens=torch.cat((drafts.tokens, padding)),
            parents=torch.cat((drafts.parents, padding)),
            depths=torch.cat((drafts.depths, padding)),
            width=drafts.width,
        )
        rows = torch.cat((logits, torch.full((3, 9), torch.nan)))
        tickets = torch.zeros(8, dtype=torch.int32)
        many = Draws.of([1, 2, *[0] * 6], [5, 6, *[0] * 6], [1.0, 0.0, *[1.0] * 6])
        found = accept(rows, padded, many, tickets=tickets)
    assert torch.equal(found.paths[:2], alone.paths) and (found.paths[2:] == -1).all()
    assert found.lengths.tolist() == [*alone.lengths.tolist(), *[0] * 6]
    assert found.bonuses.tolist() == [*alone.bonuses.tolist(), *[NOTHING] * 6]
    assert tickets.tolist() == [0] * 8
    with use_backend("reference"):
        assert alike(accept(rows, padded, many), found)


def test_no_sequences_launch_nothing(triton: None) -> None:
    with count_traffic() as traffic:
        found = accept(torch.zeros(0, 9), Drafts.of([]), Draws.of([], [], []))
    assert found.paths.shape == (0, 0) and found.bonuses.shape == (0,)
    assert traffic.cost == cost(widths=[], vocab_size=9, split=8, element_size=4, lengths=[])


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_bonus_follows_the_law_of_the_rule(rule: Rule, triton: None) -> None:
    """One draft over four tokens, all seeds in one launch: the first token's counts are the
    target's (chi-square under its 99.9 % point, 3 degrees).
    """
    count = 400
    p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    drawn = torch.multinomial(q, count, True, generator=torch.Generator().manual_seed(0)).tolist()
    drafts = Drafts.of([((token,), (-1,)) for token in drawn])
    rows = (p.expand(2 * count, 4).contiguous(), q.expand(2 * count, 4).contiguous())
    draws = Draws.of(range(count), [0] * count, [1.0] * count)
    arguments = dict(rule=rule, probabilities=rows[0], proposal=rows[1])
    with use_backend("reference"):
        found = accept(rows[0].float(), drafts, draws, **arguments)
    first = torch.where(found.lengths > 0, torch.tensor(drawn, dtype=torch.int32), found.bonuses)
    observed = torch.bincount(first, minlength=4)
    assert ((observed - p * count) ** 2 / (p * count)).sum() < 16.27
    some = slice(0, 24)
    with use_configurations({"accept": Configuration(blocks={"SPLIT": 4, "BLOCK": 4})}):
        part = accept(
            rows[0][:48].float(),
            Drafts.of([((token,), (-1,)) for token in drawn[some]]),
            Draws.of(range(24), [0] * 24, [1.0] * 24),
            rule=rule,
            probabilities=rows[0][:48],
            proposal=rows[1][:48],
        )
    assert torch.equal(part.bonuses, found.bonuses[some])
    assert torch.equal(part.lengths, found.lengths[some])


def test_bytes_and_launches_of_the_coupled_rule(triton: None) -> None:
    drafted = [((4, 2, 3), (-1, 0, -1)), ((), ()), ((3,), (-1,))]
    drafts = Drafts.of(drafted)
    logits = leaning_logits(drafts, 21, 1).bfloat16()
    draws = Draws.of([1, 2, 3], [5, 6, 7], [1.0, 0.0, 0.0])
    with use_configurations(SMALL), count_traffic() as traffic:
        found = accept(logits, drafts, draws)
    assert traffic.cost == cost(
        widths=[4, 1, 2], vocab_size=21, split=8, element_size=2, lengths=found.lengths.tolist()
    )


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_bytes_and_launches_of_the_sampled_rules(rule: Rule, one_hot: bool, triton: None) -> None:
    drafts = Drafts.of([((4, 2, 3), (-1, 0, 1)), ((3,), (-1,))])
    p = torch.softmax(leaning_logits(drafts, 21, 1), 1)
    draws = Draws.of([1, 2], [5, 6], [1.0, 1.0])
    with use_configurations(SMALL), count_traffic() as traffic:
        accept(
            p, drafts, draws, rule=rule, probabilities=p, proposal=None if one_hot else p.clone()
        )
    wanted = sampled_cost(
        widths=[4, 2],
        vocab_size=21,
        split=8,
        element_size=4,
        block=rule == "block",
        one_hot=one_hot,
    )
    assert traffic.bytes_written == wanted.bytes_written and traffic.cost.launches == 1
    again = traffic.bytes_read - wanted.bytes_read  # each bonus: its split, and its draft's token
    assert 0 < again <= 2 * (8 * 4 * (1 if one_hot else 2) + 4)


def test_arguments_that_do_not_fit_are_refused() -> None:
    drafts, draws = Drafts.of([((1,), (-1,))]), Draws.of([0], [0], [1.0])
    logits = torch.zeros(2, 4)
    with pytest.raises(KernelInputError, match="parent 1; parents must precede"):
        Drafts.of([((1, 2), (-1, 1))])
    with pytest.raises(KernelInputError, match=r"dense \[2, V\]"):
        accept(logits[:1], drafts, draws)
    with pytest.raises(KernelInputError, match="float32, bfloat16, float16 is needed"):
        accept(logits.double(), drafts, draws)
    with pytest.raises(KernelInputError, match="rule block needs probabilities"):
        accept(logits, drafts, draws, rule="block")
    with pytest.raises(KernelInputError, match="rule greedy|rule 'greedy'"):
        accept(logits, drafts, draws, rule="greedy")  # type: ignore[arg-type]
    with pytest.raises(KernelInputError, match="must be equal"):
        accept(logits, drafts, draws, rule="block", probabilities=torch.zeros(2, 5))
    with pytest.raises(KernelInputError, match="seeds is torch.int64"):
        accept(logits, drafts, Draws.of([0, 1], [0, 1], [1.0, 1.0]))
