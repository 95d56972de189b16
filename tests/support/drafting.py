"""Driving drafters in tests: through the real decode loop, and by hand with commits that the test
decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.decode import DecodeLoop, prefill
from draftsmith.engine.drafters.drafter import Drafter, DrafterContext
from draftsmith.engine.drafters.registry import make_drafter
from draftsmith.engine.model.model import Model
from draftsmith.engine.native import max_nodes
from draftsmith.engine.timing import MonotonicClock
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, Completion, Request, Sampling, SlotView, SpecConfig

Proposal = tuple[int, DraftTree]  # output tokens at that time, and what was drafted


def requests_for(
    prompts: Sequence[Sequence[int]], sampling: Sampling, prefix: str = "r"
) -> list[Request]:
    return [
        Request(request_id=f"{prefix}{i}", prompt_ids=tuple(prompt), sampling=sampling)
        for i, prompt in enumerate(prompts)
    ]


class Recorder:
    """Passes everything on to a drafter, checks what every proposal must obey, and keeps it by
    prompt.
    """

    def __init__(self, drafter: Drafter, cache: KVCache, vocab_size: int) -> None:
        self._drafter = drafter
        self._cache = cache
        self._vocab_size = vocab_size
        self.needs_logits = drafter.needs_logits
        self.proposals: list[dict[tuple[int, ...], list[Proposal]]] = [{}]

    def next_run(self) -> None:
        self.proposals.append({})

    def reset(self, slot: int) -> None:
        self._drafter.reset(slot)

    def observe(self, commits: Sequence[Commit]) -> None:
        self._drafter.observe(commits)

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        lengths = list(self._cache.lengths)
        committed = [
            (self._cache.k[:, s, :, :n].clone(), self._cache.v[:, s, :, :n].clone())
            for s, n in enumerate(lengths)
        ]
        trees = self._drafter.propose(views)
        assert self._cache.lengths == lengths
        for slot, (k, v) in enumerate(committed):
            assert torch.equal(self._cache.k[:, slot, :, : lengths[slot]], k)
            assert torch.equal(self._cache.v[:, slot, :, : lengths[slot]], v)
        assert len(trees) == len(views)
        for view, tree in zip(views, trees, strict=True):
            check_tree(tree, view.budget, self._vocab_size)
            prompt = tuple(view.tokens[: view.prompt_len])
            done = len(view.tokens) - view.prompt_len
            self.proposals[-1].setdefault(prompt, []).append((done, tree))
        return trees


def check_tree(tree: DraftTree, budget: int, vocab_size: int) -> None:
    assert len(tree) <= budget
    assert all(0 <= token < vocab_size for token in tree.tokens)
    DraftTree(tree.tokens, tree.parents)  # parents precede children, siblings are distinct
    if tree.probs is not None:
        assert tree.is_chain
        assert tuple(tree.probs.shape) == (len(tree), vocab_size)
        assert torch.allclose(tree.probs.sum(-1).double(), torch.ones(len(tree)).double())
        assert all(tree.probs[i, token] > 0 for i, token in enumerate(tree.tokens))


class Bench:
    """One target, one drafter, one cache, run after run."""

    def __init__(
        self,
        target: Model,
        config: SpecConfig,
        *,
        num_slots: int = 1,
        capacity: int = 192,
        nodes: int | None = None,
        **inputs: object,
    ) -> None:
        self.target = target
        self.config = config
        self.cache = target.new_cache(num_slots=num_slots, capacity=capacity)
        self.context = DrafterContext(target=target, cache=self.cache, **inputs)  # type: ignore[arg-type]
        drafter = make_drafter(config, self.context)
        self.recorder = (
            None if drafter is None else Recorder(drafter, self.cache, target.info.vocab_size)
        )
        self.drafter = drafter
        self._nodes = max_nodes(config) if nodes is None else nodes

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        loop = DecodeLoop(
            self.target,
            self.cache,
            self.recorder,
            clock=MonotonicClock(),
            verifier=self.config.verifier,
            max_nodes=self._nodes,
            chain=self.config.tree == "chain",
        )
        return loop.run(requests)


class ManualSlot:
    """One slot whose committed tokens the test decides; the target's cache follows."""

    def __init__(
        self, drafter: Drafter, context: DrafterContext, prompt: Sequence[int], sampling: Sampling
    ) -> None:
        self._drafter = drafter
        self._context = context
        self.slot = context.cache.allocate()
        drafter.reset(self.slot)
        self.tokens = list(prompt)
        self._prompt_len = len(prompt)
        self._sampling = sampling
        self._feed()

    def _feed(self) -> None:
        """Bring the target's cache to all tokens but the newest."""
        start = self._context.cache.lengths[self.slot]
        prefill(self._context.target, self._context.cache, self.slot, self.tokens[start:-1])

    def view(self, budget: int) -> SlotView:
        return SlotView(self.slot, self.tokens, self._prompt_len, self._sampling, budget)

    def propose(self, budget: int) -> DraftTree:
        return self._drafter.propose([self.view(budget)])[0]

    def commit(self, tree: DraftTree, path: Sequence[int], bonus: int) -> None:
        tokens = (*(tree.tokens[node] for node in path), bonus)
        self.tokens.extend(tokens)
        self._feed()
        logits = None
        if self._drafter.needs_logits:
            generator = torch.Generator().manual_seed(len(self.tokens))
            size = (1 + len(tree), self._context.target.info.vocab_size)
            logits = torch.randn(size, generator=generator)
        self._drafter.observe([Commit(self.slot, tokens, tuple(path), False, logits)])


def longest_path(tree: DraftTree) -> list[int]:
    """Node indices from the root's child to the deepest node (the last of them)."""
    if not len(tree):
        return []
    depths = tree.depths()
    node = max(range(len(tree)), key=lambda i: (depths[i], i))
    path = []
    while node >= 0:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]
