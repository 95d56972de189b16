"""The three verification rules: exact laws by enumeration, walks through trees, biased rules ruled
out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from scipy.stats import chisquare

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.sampling import RowContext, probabilities, sample_draft, scores
from draftsmith.engine.trees.tree import EMPTY, DraftTree, chain
from draftsmith.engine.types import Sampling
from draftsmith.engine.verify import reject_tokens, verify, verify_block, walk

Rule = Callable[..., tuple[int, torch.Tensor]]
EPS = 1e-15


def random_law(generator: torch.Generator, vocab: int, zeros: bool) -> torch.Tensor:
    weights = torch.rand(vocab, generator=generator, dtype=torch.float64)
    if zeros:
        weights[torch.rand(vocab, generator=generator) < 0.35] = 0.0
    return (
        weights / weights.sum() if float(weights.sum()) > 0 else random_law(generator, vocab, zeros)
    )


class Process:
    """A random autoregressive law on a tiny vocabulary: one row a prefix."""

    def __init__(self, seed: int, vocab: int, depth: int, zeros: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.vocab = vocab
        self.rows = {
            prefix: random_law(generator, vocab, zeros)
            for length in range(depth + 1)
            for prefix in itertools.product(range(vocab), repeat=length)
        }

    def joint(self, tokens: Sequence[int]) -> float:
        total = 1.0
        for i, token in enumerate(tokens):
            total *= float(self.rows[tuple(tokens[:i])][token])
        return total


def threshold(decide: Callable[[float], bool]) -> float:
    """Largest u in (0, 1) at which ``decide`` still holds (it is monotone), by bisection."""
    if not decide(EPS):
        return 0.0
    if decide(1.0 - EPS):
        return 1.0
    low, high = EPS, 1.0 - EPS
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if decide(middle) else (low, middle)
    return low


def _keeps(
    rule: Rule,
    p: torch.Tensor,
    q: torch.Tensor,
    drafts: Sequence[int],
    others: float,
    index: int,
    u: float,
) -> bool:
    """Whether draft ``index`` is kept at ``u``, every other uniform being ``others``."""
    uniforms = [others] * len(drafts)
    uniforms[index] = u
    return rule(p, q, drafts, uniforms)[0] > index


def output_law(
    rule: Rule, target: Process, drafter: Process, length: int
) -> dict[tuple[int, ...], float]:
    """Exact law of the first ``length + 1`` tokens when one chain of ``length`` is drafted,
    verified by ``rule``, and the rest is drawn from the target. Acceptance regions are read off the
    rule itself.
    """
    law = dict.fromkeys(itertools.product(range(target.vocab), repeat=length + 1), 0.0)
    for drafts in itertools.product(range(target.vocab), repeat=length):
        weight = drafter.joint(drafts)
        if weight == 0.0:
            continue
        p = torch.stack([target.rows[drafts[:i]] for i in range(length + 1)])
        q = torch.stack([drafter.rows[drafts[:i]] for i in range(length)])
        first_failure = rule is reject_tokens
        others = EPS if first_failure else 1.0 - EPS

        keeps = partial(_keeps, rule, p, q, drafts, others)
        limits = [threshold(partial(keeps, i)) for i in range(length)]
        if first_failure:  # with all others accepting, a rejecting earlier draft hides later ones
            limits = [
                threshold(partial(keeps, i)) if all(keeps(j, EPS) for j in range(i)) else 0.0
                for i in range(length)
            ]
        for pattern in itertools.product((True, False), repeat=length):
            region, uniforms = 1.0, []
            for accept, limit in zip(pattern, limits, strict=True):
                region *= limit if accept else 1.0 - limit
                uniforms.append(limit / 2 if accept else (1.0 + limit) / 2)
            if region == 0.0:
                continue
            kept, weights = rule(p, q, drafts, uniforms)
            weights = weights / weights.sum()
            for rest in itertools.product(range(target.vocab), repeat=length + 1 - kept):
                tokens = (*drafts[:kept], *rest)
                tail = float(weights[rest[0]])
                for i in range(kept + 1, length + 1):
                    tail *= float(target.rows[tokens[:i]][tokens[i]])
                law[tokens] += weight * region * tail
    return law


@pytest.mark.parametrize("rule", [reject_tokens, verify_block])
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("zeros", [False, True])
def test_rule_reproduces_the_target_law_exactly(rule: Rule, length: int, zeros: bool) -> None:
    for seed in range(6 if length < 3 else 2):
        target = Process(seed, 3, length + 1, zeros)
        drafter = Process(100 + seed, 3, length, zeros)
        law = output_law(rule, target, drafter, length)
        distance = sum(abs(mass - target.joint(tokens)) for tokens, mass in law.items()) / 2
        assert distance < 1e-9


def test_a_rule_that_draws_from_the_wrong_residual_is_caught_by_the_enumeration() -> None:
    def biased(p, q, drafts, uniforms):  # type: ignore[no-untyped-def]
        kept, weights = verify_block(p, q, drafts, uniforms)
        if kept < len(drafts):  # the residual of token rejection, in block verification
            weights = (p[kept] - q[kept]).clamp(min=0.0)
        return kept, weights

    target, drafter = Process(2, 3, 3, False), Process(102, 3, 2, False)
    law = output_law(biased, target, drafter, 2)
    assert sum(abs(mass - target.joint(t)) for t, mass in law.items()) / 2 > 1e-3


def test_block_verification_keeps_at_least_as_many_tokens_as_token_rejection() -> None:
    for seed in range(5):
        target, drafter = Process(seed, 3, 3, False), Process(50 + seed, 3, 2, False)
        kept = {}
        for rule in (reject_tokens, verify_block):
            total = 0.0
            for drafts in itertools.product(range(3), repeat=2):
                p = torch.stack([target.rows[drafts[:i]] for i in range(3)])
                q = torch.stack([drafter.rows[drafts[:i]] for i in range(2)])
                grid = [(i + 0.5) / 16 for i in range(16)]
                mean = sum(rule(p, q, drafts, [a, b])[0] for a in grid for b in grid) / 256
                total += drafter.joint(drafts) * mean
            kept[rule] = total
        assert kept[verify_block] >= kept[reject_tokens] - 0.03


def context_of(seed: int, temperature: float = 1.0, **fields: object) -> RowContext:
    return RowContext(Sampling(temperature=temperature, seed=seed, **fields), 1, [0])  # type: ignore[arg-type]


def counts_pass(counts: Sequence[int], law: Sequence[float]) -> bool:
    total = sum(counts)
    return chisquare(counts, [total * mass for mass in law]).pvalue > 1e-4


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_b7_the_verified_q_is_the_one_that_was_sampled_from(verifier: str) -> None:
    """Uniform target, drafter cut by top_k=2: the first token must stay uniform."""
    target = torch.zeros(2, 4)
    raw = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    counts = [0] * 4
    for seed in range(3_000):
        draft_context = context_of(seed, top_k=2)
        q = probabilities(raw, [draft_context])
        tree = chain((sample_draft(q[0], draft_context),), q)
        verdict = verify(target, tree, context_of(seed), verifier=verifier)  # type: ignore[arg-type]
        counts[verdict.tokens(tree)[0]] += 1
    assert counts_pass(counts, [0.25] * 4)


def test_b8_two_siblings_do_not_bias_the_emitted_token() -> None:
    p, q = [0.5, 0.3, 0.2], torch.tensor([[0.6, 0.3, 0.1]])
    counts, accepted = [0] * 3, 0
    for seed in range(3_000):
        context = context_of(seed)
        siblings = scores(q.log(), [context])[0].topk(2).indices.tolist()
        tree = DraftTree(tuple(siblings), (-1, -1))
        verdict = verify(torch.tensor([p, p, p]).log(), tree, context)
        counts[verdict.tokens(tree)[0]] += 1
        accepted += len(verdict.path)
    assert counts_pass(counts, p)
    assert accepted > 0.9 * 3_000


def test_b8_sampled_verifiers_refuse_a_tree_by_name() -> None:
    tree = DraftTree((0, 1), (-1, -1))
    with pytest.raises(EngineInputError, match="rejection needs a chain.*tree of 2 nodes.*coupled"):
        verify(torch.zeros(3, 4), tree, context_of(0), verifier="rejection")


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_point_mass_drafts_are_verified_exactly_by_the_sampled_rules(verifier: str) -> None:
    law = [0.5, 0.3, 0.2]
    counts = [0] * 3
    for seed in range(3_000):
        verdict = verify(
            torch.tensor([law, law]).log(),
            chain((1,)),
            context_of(seed),
            verifier=verifier,  # type: ignore[arg-type]
        )
        counts[verdict.tokens(chain((1,)))[0]] += 1
    assert counts_pass(counts, law)


def test_b2_only_the_matching_prefix_counts() -> None:
    tree = chain((5, 6, 7, 8))
    verdict = walk([5, 9, 7, 8, 1], tree)  # match mask [1, 0, 1, 1]
    assert (verdict.path, verdict.bonus) == ((0,), 9)


def test_walk_follows_the_branch_that_the_target_chose() -> None:
    #         root -> a(1), b(2); b -> c(3), d(4)
    tree = DraftTree((1, 2, 3, 4), (-1, -1, 1, 1))
    verdict = walk([2, 0, 4, 0, 9], tree)
    assert verdict.path == (1, 3)
    assert verdict.tokens(tree) == (2, 4, 9)


def test_no_draft_gives_the_stock_token_for_every_verifier() -> None:
    logits = torch.randn(1, 16, generator=torch.Generator().manual_seed(3))
    context = context_of(11, temperature=0.7)
    expected = int(scores(logits, [context]).argmax())
    for verifier in ("coupled", "rejection", "block"):
        assert verify(logits, EMPTY, context, verifier=verifier).bonus == expected  # type: ignore[arg-type]


def test_b14_exact_ties_go_to_the_lowest_id_with_and_without_speculation() -> None:
    logits = torch.zeros(2, 32)
    logits[:, [5, 27]] = 4.0
    context = context_of(0, temperature=0.0)
    assert verify(logits[:1], EMPTY, context).bonus == 5
    assert verify(logits, chain((5,)), context).tokens(chain((5,))) == (5, 5)
    assert verify(logits, chain((27,)), context).tokens(chain((27,))) == (5,)
