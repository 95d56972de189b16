"""THE hot loop: propose -> verify -> commit, for every running request at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.engine.batch import Running, WaitingLine, causal_rows, real_rows, verify_rows
from draftsmith.engine.budget import DraftBudget
from draftsmith.engine.cache import KVCache
from draftsmith.engine.drafters.drafter import Drafter
from draftsmith.engine.model.model import Model
from draftsmith.engine.sampling import is_plain_greedy, scores
from draftsmith.engine.stopping import StopRule, TextDecoder
from draftsmith.engine.timing import Clock
from draftsmith.engine.trees.tree import EMPTY, DraftTree
from draftsmith.engine.types import Commit, Completion, Request, Verifier
from draftsmith.engine.verify import Verdict, best_tokens, settled_verdict, verify, walk

PREFILL_CHUNK = 512  # rows a forward; bounds the activation memory of long prompts


class DecodeLoop:
    """Runs requests over ``cache.num_slots`` slots with continuous admission, first come, first
    served.

    ``max_nodes`` caps the drafted nodes of a request's step; within that ``budget``, where there is
    one, decides.
    Between steps the cache holds every committed token but the newest (the root of the next draft).
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        drafter: Drafter | None,
        *,
        clock: Clock,
        decoder: TextDecoder | None = None,
        verifier: Verifier = "coupled",
        max_nodes: int = 0,
        chain: bool = True,
        capture_margins: bool = False,
        budget: DraftBudget | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._drafter = drafter
        self._clock = clock
        self._decoder = decoder
        self._verifier: Verifier = verifier
        self._max_nodes = max_nodes
        self._chain = chain
        self._capture_margins = capture_margins
        self._planner = budget
        self._eos = model.info.eos_token_ids
        self.num_forwards = 0

    @torch.inference_mode()
    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Completions in the order of ``requests``. Raises EngineInputError where the target's
        logits leave nothing to choose (NaN).
        """
        waiting = WaitingLine(requests)
        running: list[Running] = []
        done: dict[int, Completion] = {}
        order = {id(request): index for index, request in enumerate(requests)}
        try:
            while waiting or running:
                while waiting and len(running) < self._cache.num_slots:
                    running.append(self._admit(waiting.pop()))
                    self._prefill(running[-1])
                self._retire(running, done, order)
                if running:
                    self._step(running)
                    self._retire(running, done, order)
        finally:
            for one in running:
                self._cache.release(one.slot)
        return [done[index] for index in range(len(requests))]

    def _retire(
        self, running: list[Running], done: dict[int, Completion], order: dict[int, int]
    ) -> None:
        for one in [one for one in running if one.stop_reason is not None]:
            done[order[id(one.request)]] = one.completion(self._clock.now())
            self._cache.release(one.slot)
            running.remove(one)

    def _admit(self, request: Request) -> Running:
        admitted = self._clock.now()
        rule = StopRule(request.sampling, self._eos, self._decoder)
        slot = self._cache.allocate()
        one = Running(request, slot, rule, list(request.prompt_ids), admitted)
        if self._drafter is not None:
            self._drafter.reset(slot)
        if self._planner is not None:
            self._planner.admit(slot)
        return one

    def _prefill(self, one: Running) -> None:
        """Feed the prompt in chunks; its last row gives the first output token."""
        hidden = prefill(self._model, self._cache, one.slot, one.request.prompt_ids)
        self.num_forwards += 1
        logits = self._model.head(hidden[-1:])
        verdict = self._judge(logits, [1], [one], [EMPTY])[0]
        one.commit(0, verdict.tokens(EMPTY))
        one.prefilled_s = self._clock.now()

    def _step(self, running: list[Running]) -> None:
        begin_s = self._clock.now() if self._planner is not None else 0.0
        trees = self._propose(running)
        drafted_s = self._clock.now() if self._planner is not None else 0.0
        rows = verify_rows(running, trees)
        for one, width in zip(running, rows.widths, strict=True):
            self._cache.require(one.slot, width)
        hidden = self._model.forward(rows, self._cache)
        self.num_forwards += 1
        logits = self._model.head(real_rows(hidden.last, rows.widths))
        verdicts = self._judge(logits, rows.widths, running, trees)
        if self._planner is not None:
            self._planner.learn_draft(sum(len(tree) for tree in trees), drafted_s - begin_s)
            self._planner.learn_step(sum(rows.widths), self._clock.now() - drafted_s)
            for one, tree, verdict in zip(running, trees, verdicts, strict=True):
                self._planner.learn_outcome(one.slot, len(tree), len(verdict.path))
        self._commit(running, trees, verdicts, logits, rows.widths)

    def _propose(self, running: list[Running]) -> list[DraftTree]:
        if self._drafter is None:
            return [EMPTY] * len(running)
        budgets = [self._budget(one) for one in running]
        if self._planner is not None:
            budgets = self._planner.plan([one.slot for one in running], budgets)
        asked = [i for i, budget in enumerate(budgets) if budget > 0]
        trees = [EMPTY] * len(running)
        if asked:
            proposals = self._drafter.propose([running[i].view(budgets[i]) for i in asked])
            for i, tree in zip(asked, proposals, strict=True):
                trees[i] = tree.truncated(budgets[i])
        return trees

    def _budget(self, one: Running) -> int:
        """Draft nodes worth having: the last token that may be emitted needs no draft, it is the
        bonus.
        """
        left = one.remaining() - 1
        if self._chain or left <= 0:
            return min(self._max_nodes, left)
        return self._max_nodes

    def _judge(
        self,
        logits: torch.Tensor,
        widths: Sequence[int],
        running: Sequence[Running],
        trees: Sequence[DraftTree],
    ) -> list[Verdict]:
        contexts = [one.context() for one in running]
        if self._capture_margins:
            self._record_margins(logits, running)
        if all(is_plain_greedy(context) for context in contexts):
            choices = best_tokens(logits)  # the step's one synchronisation
            starts = _starts(widths)
            return [
                settled_verdict(
                    walk(choices[start : start + width], tree), logits[start:], tree, context
                )
                for start, width, tree, context in zip(starts, widths, trees, contexts, strict=True)
            ]
        parts = torch.split(logits, list(widths))
        return [
            verify(rows, tree, context, eos_ids=self._eos, verifier=self._verifier)
            for rows, tree, context in zip(parts, trees, contexts, strict=True)
        ]

    def _record_margins(self, logits: torch.Tensor, running: Sequence[Running]) -> None:
        """Top-1 minus top-2 score of the token about to be chosen (stock: one row a request)."""
        contexts = [one.context() for one in running]
        top = scores(logits, contexts, eos_ids=self._eos).topk(2, dim=-1).values
        for one, margin in zip(running, (top[:, 0] - top[:, 1]).tolist(), strict=True):
            one.margins.append(margin)

    def _commit(
        self,
        running: Sequence[Running],
        trees: Sequence[DraftTree],
        verdicts: Sequence[Verdict],
        logits: torch.Tensor,
        widths: Sequence[int],
    ) -> None:
        commits = []
        wants = self._drafter is not None and self._drafter.needs_logits
        parts = torch.split(logits, list(widths)) if wants else [None] * len(running)
        for one, tree, verdict, rows in zip(running, trees, verdicts, parts, strict=True):
            tokens = one.commit(len(tree), verdict.tokens(tree))
            accepted = verdict.path[: len(tokens)]
            kept = verdict.path[: len(tokens) - 1]
            self._cache.keep(one.slot, [0, *(node + 1 for node in kept)])
            finished = one.stop_reason is not None
            commits.append(Commit(one.slot, tokens, accepted, finished, rows))
        if self._drafter is not None:
            self._drafter.observe(commits)


def _starts(widths: Sequence[int]) -> list[int]:
    starts, total = [], 0
    for width in widths:
        starts.append(total)
        total += width
    return starts


def prefill(
    model: Model, cache: KVCache, slot: int, token_ids: Sequence[int], *, every_row: bool = False
) -> torch.Tensor:
    """Run ``token_ids`` behind the committed rows of ``slot`` and commit them. Returns the last
    chunk's hidden rows ``[W, H]``, or all of them ``[N, H]`` with ``every_row``.
    """
    chunks: list[torch.Tensor] = []
    for begin in range(0, len(token_ids), PREFILL_CHUNK):
        part = token_ids[begin : begin + PREFILL_CHUNK]
        cache.require(slot, len(part))
        hidden = model.forward(causal_rows(slot, part, cache.lengths[slot]), cache).last[0]
        cache.keep(slot, range(len(part)))
        chunks = [*chunks, hidden] if every_row else [hidden]
    return torch.cat(chunks) if every_row else chunks[-1]
