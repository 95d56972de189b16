"""A drafter that replays stock's own outputs, right or wrong on purpose, for tests and cost
studies.

oracle  every token right.
wrong   every token wrong (right + 1 modulo the vocabulary).
mixed   ``script_right`` right tokens, one wrong, then right again (which no verifier may accept).
random  each token right with probability ``accept_p``, by a hash of (seed, position).

In a static tree a node's children hold the right token at a rank chosen by the same hash, among
wrong siblings. Past the end of the reference nothing is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.shapes import (
    fill_template,
    make_template,
    require_int,
    require_shape,
    require_share,
)
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.trees.static import TreeTemplate
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, SlotView, SpecConfig


class ScriptedDrafter:
    """Chains and static trees. Keeps each slot's reference, looked up by its prompt."""

    needs_logits = False

    def __init__(self, config: SpecConfig, context: DrafterContext) -> None:
        require_shape(config, ("chain", "static"))
        require_share("accept_p", config.accept_p)
        require_int("script_right", config.script_right, 0, config.block_size)
        if config.script not in ("oracle", "wrong", "mixed", "random"):
            raise EngineInputError(
                f"script is {config.script!r}; use oracle, wrong, mixed or random"
            )
        if context.references is None:
            raise EngineInputError(
                "drafter scripted replays stock's outputs and was given none;"
                " run stock first and pass its outputs as references"
            )
        self._config = config
        self._references = context.references
        self._vocab_size = context.target.info.vocab_size
        self._template = make_template(config, context.rank_acceptance)
        if self._template.num_ranks > self._vocab_size:
            raise EngineInputError(
                f"tree needs {self._template.num_ranks} tokens a node, the vocabulary has"
                f" {self._vocab_size}; narrow it"
            )
        self._widths = _fewest_siblings(self._template)
        self._slots: dict[int, tuple[int, ...]] = {}

    def reset(self, slot: int) -> None:
        self._slots.pop(slot, None)

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        return [self._propose(view) for view in views]

    def observe(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if commit.finished:
                self.reset(commit.slot)

    def _propose(self, view: SlotView) -> DraftTree:
        reference = self._slots.get(view.slot)
        if reference is None:
            reference = self._slots[view.slot] = self._look_up(view)
        return fill_template(
            self._template,
            view.budget,
            view.tokens[-1],
            self._candidates(view, reference),
            frozenset(),
        )

    def _look_up(self, view: SlotView) -> tuple[int, ...]:
        prompt = tuple(view.tokens[: view.prompt_len])
        if prompt not in self._references:
            raise EngineInputError(
                f"drafter scripted has no reference for a prompt of {len(prompt)} tokens; it knows"
                f" {len(self._references)} prompts, run stock on this one too"
            )
        return self._references[prompt]

    def _candidates(
        self, view: SlotView, reference: tuple[int, ...]
    ) -> Callable[[int, int], Sequence[int]]:
        start = len(view.tokens) - view.prompt_len
        ranks = self._template.num_ranks

        def candidates(token: int, depth: int) -> Sequence[int]:
            position = start + depth
            right = reference[position] if position < len(reference) else None
            base = token if right is None else right
            wrong = [
                (base + 1 + i) % self._vocab_size for i in range(min(ranks, self._vocab_size - 1))
            ]
            if right is None or not self._is_right(view, depth, position):
                return wrong
            place = _hash(view.sampling.seed, position, "rank") % self._widths[depth]
            return [*wrong[:place], right, *wrong[place:]][:ranks]

        return candidates

    def _is_right(self, view: SlotView, depth: int, position: int) -> bool:
        config = self._config
        if config.script == "random":
            return _hash(view.sampling.seed, position, "right") < config.accept_p * 2**64
        return config.script == "oracle" or (
            config.script == "mixed" and depth != config.script_right
        )


def _fewest_siblings(template: TreeTemplate) -> list[int]:
    """Per depth, the fewest children of a node that has any: ranks under it exist everywhere."""
    depths = (0, *template.depths)
    widths = [0] * max(depths)
    for depth, children in zip(depths, template.children, strict=True):
        if children:
            widths[depth] = min(widths[depth] or len(children), len(children))
    return widths


def _hash(seed: int, position: int, purpose: str) -> int:
    """64 well-mixed bits, the same on every machine."""
    digest = hashlib.blake2b(f"{seed}:{position}:{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
