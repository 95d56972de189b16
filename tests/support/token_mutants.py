"""Mutants of what is emitted: acceptance, commit, stop conditions, sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from mutant import VOCAB, Mutant

from draftsmith.engine import decode, sampling
from draftsmith.engine.batch import Running
from draftsmith.engine.decode import DecodeLoop
from draftsmith.engine.sampling import RowContext
from draftsmith.engine.stopping import StopRule
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Completion, Sampling, StopReason
from draftsmith.engine.verify import Verdict, walk

CHAINS = ("exit-chain", "oracle", "ngram")
TREES = ("exit-static", "recycle-tree", "scripted-tree")
BOTH = ("oracle", "scripted-tree", "exit-static")
STOPS = {"stop_token_ids": (5, 9, 20, 33, 41, 50)}
WARM = {"temperature": 0.8}
PERIOD = 7  # output positions between two planted single-token faults


def _change_tokens(
    patch: pytest.MonkeyPatch, change: Callable[[Running, Sequence[int]], Sequence[int]]
) -> None:
    """``change`` sees a request and the tokens about to be committed (accepted + bonus)."""
    original = Running.commit

    def commit(self: Running, drafted: int, proposed: Sequence[int]) -> tuple[int, ...]:
        return original(self, drafted, change(self, proposed))

    patch.setattr(Running, "commit", commit)


def wrong_token(patch: pytest.MonkeyPatch) -> None:
    def change(one: Running, proposed: Sequence[int]) -> Sequence[int]:
        if len(one.output) % PERIOD != PERIOD - 1:
            return proposed
        return (*proposed[:-1], (proposed[-1] + 1) % VOCAB)

    _change_tokens(patch, change)


def runner_up(patch: pytest.MonkeyPatch) -> None:
    original = sampling.scores_row

    def scores_row(
        row: torch.Tensor, context: RowContext, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        values = original(row, context, *args, **kwargs)
        if context.position % PERIOD == PERIOD - 1 and int(values.isfinite().sum()) > 1:
            values = values.clone()
            values[values.argmax()] = -torch.inf
        return values

    patch.setattr(sampling, "scores_row", scores_row)


def dropped_token(patch: pytest.MonkeyPatch) -> None:
    _change_tokens(
        patch,
        lambda _, proposed: (*proposed[:-2], proposed[-1]) if len(proposed) > 1 else proposed,
    )


def duplicated_bonus(patch: pytest.MonkeyPatch) -> None:
    _change_tokens(
        patch,
        lambda one, proposed: (
            (*proposed, proposed[-1]) if len(one.output) % PERIOD > PERIOD - 3 else proposed
        ),
    )


def duplicated_draft(patch: pytest.MonkeyPatch) -> None:
    _change_tokens(
        patch,
        lambda _, proposed: (proposed[0], *proposed[:-1]) if len(proposed) > 1 else proposed,
    )


def _change_walk(
    patch: pytest.MonkeyPatch,
    change: Callable[[Sequence[int], DraftTree, Verdict], Verdict],
) -> None:
    """``change`` sees the target's choices by row, the tree and the right verdict."""
    patch.setattr(decode, "walk", lambda choices, tree: change(choices, tree, walk(choices, tree)))


def bonus_of_parent(patch: pytest.MonkeyPatch) -> None:
    def change(choices: Sequence[int], tree: DraftTree, right: Verdict) -> Verdict:
        if not right.path:
            return right
        return Verdict(right.path, choices[tree.parents[right.path[-1]] + 1])

    _change_walk(patch, change)


def bonus_of_last_row(patch: pytest.MonkeyPatch) -> None:
    _change_walk(patch, lambda choices, _, right: Verdict(right.path, choices[-1]))


def accept_one_more(patch: pytest.MonkeyPatch) -> None:
    def change(choices: Sequence[int], tree: DraftTree, right: Verdict) -> Verdict:
        node = right.path[-1] if right.path else -1
        children = tree.children(node)
        if not children:
            return right
        return Verdict((*right.path, children[0]), choices[children[0] + 1])

    _change_walk(patch, change)


def accept_any_sibling(patch: pytest.MonkeyPatch) -> None:
    def change(choices: Sequence[int], tree: DraftTree, right: Verdict) -> Verdict:
        if not right.path:
            return right
        sibling = tree.children(tree.parents[right.path[-1]])[0]
        return Verdict((*right.path[:-1], sibling), choices[sibling + 1])

    _change_walk(patch, change)


def accept_non_prefix(patch: pytest.MonkeyPatch) -> None:
    """The matches of the whole block are counted, not those of its prefix (cases.md B2)."""

    def change(choices: Sequence[int], tree: DraftTree, right: Verdict) -> Verdict:
        if not tree.is_chain:
            return right
        count = sum(a == b for a, b in zip(choices, tree.tokens, strict=False))
        return Verdict(tuple(range(count)), choices[count])

    _change_walk(patch, change)


def _change_stop(
    patch: pytest.MonkeyPatch,
    change: Callable[[Sampling, Sequence[int], StopReason | None], StopReason | None],
) -> None:
    original = StopRule.check

    def check(self: StopRule, tokens: Sequence[int], start: int = 0) -> StopReason | None:
        return change(self._sampling, tokens[start:], original(self, tokens, start))

    patch.setattr(StopRule, "check", check)


def early_stop(patch: pytest.MonkeyPatch) -> None:
    _change_stop(
        patch,
        lambda own, output, reason: (
            reason or ("length" if len(output) == own.max_tokens - 1 else None)
        ),
    )


def late_stop(patch: pytest.MonkeyPatch) -> None:
    _change_stop(
        patch,
        lambda own, output, reason: (
            None if reason == "length" and len(output) == own.max_tokens else reason
        ),
    )


def eos_ignored(patch: pytest.MonkeyPatch) -> None:
    _change_stop(
        patch,
        lambda own, output, reason: (
            ("length" if len(output) >= own.max_tokens else None)
            if reason == "stop_token"
            else reason
        ),
    )


def eos_ignored_in_block(patch: pytest.MonkeyPatch) -> None:
    """Only the last token of a block is looked at (cases.md B4)."""
    original = Running.commit

    def commit(self: Running, drafted: int, proposed: Sequence[int]) -> tuple[int, ...]:
        proposed = proposed[: self.remaining()]
        self.tokens.extend(proposed[:-1])
        last = original(self, drafted, proposed[-1:])
        return (*proposed[:-1], *last)

    patch.setattr(Running, "commit", commit)


def rejected_eos_ends(patch: pytest.MonkeyPatch) -> None:
    original = DecodeLoop._commit

    def commit(
        self: DecodeLoop, running: Sequence[Running], trees: Sequence[DraftTree], *args: Any
    ) -> None:
        original(self, running, trees, *args)
        for one, tree in zip(running, trees, strict=True):
            if set(tree.tokens) & set(one.request.sampling.stop_token_ids):
                one.stop_reason = "stop_token"

    patch.setattr(DecodeLoop, "_commit", commit)


def min_tokens_ignored(patch: pytest.MonkeyPatch) -> None:
    original = sampling.penalised

    def penalised(row: torch.Tensor, context: RowContext, *args: Any) -> torch.Tensor:
        if context.path:
            context = replace(context, sampling=replace(context.sampling, min_tokens=0))
        return original(row, context, *args)

    patch.setattr(sampling, "penalised", penalised)


def wrong_stop_reason(patch: pytest.MonkeyPatch) -> None:
    original = Running.completion

    def completion(self: Running, now_s: float) -> Completion:
        return replace(original(self, now_s), stop_reason="length")

    patch.setattr(Running, "completion", completion)


def _change_noise(
    patch: pytest.MonkeyPatch, change: Callable[[RowContext], tuple[int, int]]
) -> None:
    """``change`` gives the (seed, position) of a row's noise."""
    patch.setattr(sampling, "noise_key", change)


def noise_of_the_root(patch: pytest.MonkeyPatch) -> None:
    _change_noise(patch, lambda context: (context.sampling.seed, context.root_position))


def noise_one_late(patch: pytest.MonkeyPatch) -> None:
    _change_noise(
        patch,
        lambda context: (context.sampling.seed, context.position + bool(context.path)),
    )


def noise_of_another_seed(patch: pytest.MonkeyPatch) -> None:
    _change_noise(
        patch,
        lambda context: (context.sampling.seed + bool(context.path), context.position),
    )


def noise_of_the_slot(patch: pytest.MonkeyPatch) -> None:
    original = Running.context

    def context(self: Running) -> RowContext:
        right = original(self)
        return replace(
            right, sampling=replace(right.sampling, seed=right.sampling.seed + self.slot)
        )

    patch.setattr(Running, "context", context)


def penalties_forget_path(patch: pytest.MonkeyPatch) -> None:
    original = sampling.penalised
    patch.setattr(
        sampling,
        "penalised",
        lambda row, context, *args: original(row, replace(context, path=()), *args),
    )


def _on_drafted_rows(patch: pytest.MonkeyPatch, change: Callable[[Sampling], Sampling]) -> None:
    """Other sampling for rows behind a draft token than for the root's row."""

    def changed(original: Callable[..., Any]) -> Callable[..., Any]:
        def on_row(row: torch.Tensor, context: RowContext, *args: Any, **kwargs: Any) -> Any:
            if context.path:
                context = replace(context, sampling=change(context.sampling))
            return original(row, context, *args, **kwargs)

        return on_row

    for name in ("scores_row", "_uncut_choice"):
        patch.setattr(sampling, name, changed(getattr(sampling, name)))


def temperature_ignored(patch: pytest.MonkeyPatch) -> None:
    _on_drafted_rows(patch, lambda own: replace(own, temperature=1.0))


def top_k_ignored(patch: pytest.MonkeyPatch) -> None:
    _on_drafted_rows(patch, lambda own: replace(own, top_k=0))


def top_p_before_temperature(patch: pytest.MonkeyPatch) -> None:
    original = sampling.tempered

    def tempered(row: torch.Tensor, context: RowContext, *args: Any) -> torch.Tensor:
        if not context.path:
            return original(row, context, *args)
        cold = replace(context, sampling=replace(context.sampling, temperature=1.0))
        kept = sampling.cut(original(row, cold, *args), replace(context.sampling, top_k=0))
        return kept / context.sampling.temperature

    patch.setattr(sampling, "tempered", tempered)


CUT = {"temperature": 1.3, "top_p": 0.8}
PENALISED = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4}
LATE = {"stop_token_ids": tuple(range(2, 40, 2)), "min_tokens": 12}

TOKEN_MUTANTS = (
    Mutant("wrong token", "every 7th token one too high", wrong_token, BOTH),
    Mutant("runner-up", "the second best of a cut support", runner_up, BOTH, {**CUT, "top_k": 6}),
    Mutant("dropped token", "last accepted token lost", dropped_token, BOTH),
    Mutant("duplicated bonus", "bonus token emitted twice", duplicated_bonus, BOTH),
    Mutant("duplicated draft", "first accepted token twice", duplicated_draft, BOTH),
    Mutant("bonus of parent", "bonus read from the parent's row", bonus_of_parent, BOTH),
    Mutant("bonus of last row", "bonus read from the last row", bonus_of_last_row, BOTH),
    Mutant("one too many", "accepts a child past the match", accept_one_more, BOTH),
    Mutant("any sibling", "accepts the first sibling", accept_any_sibling, TREES),
    Mutant("non-prefix match", "counts matches past a miss", accept_non_prefix, CHAINS),
    Mutant("early stop", "ends one token early", early_stop, BOTH),
    Mutant("late stop", "ends one token late", late_stop, BOTH),
    Mutant("EOS ignored", "a stop token does not end it", eos_ignored, BOTH, STOPS),
    Mutant(
        "EOS in block", "only a block's last token can end it", eos_ignored_in_block, BOTH, STOPS
    ),
    Mutant("rejected EOS", "a drafted stop token ends it", rejected_eos_ends, BOTH, STOPS),
    Mutant("min tokens", "ignored behind draft tokens", min_tokens_ignored, BOTH, LATE),
    Mutant("stop reason", "always says length", wrong_stop_reason, BOTH, STOPS),
    Mutant("noise of root", "noise of the step's first position", noise_of_the_root, BOTH, WARM),
    Mutant("noise late", "noise of the next position", noise_one_late, BOTH, WARM),
    Mutant("noise of seed", "another seed behind drafts", noise_of_another_seed, BOTH, WARM),
    Mutant("noise of slot", "seed moves with the slot", noise_of_the_slot, BOTH, WARM, 4),
    Mutant("penalties", "forget the draft path", penalties_forget_path, BOTH, PENALISED),
    Mutant("temperature", "1 behind draft tokens", temperature_ignored, BOTH, {"temperature": 0.5}),
    Mutant("top-k", "off behind draft tokens", top_k_ignored, BOTH, {**CUT, "top_k": 4}),
    Mutant("top-p order", "before temperature behind drafts", top_p_before_temperature, BOTH, CUT),
)
