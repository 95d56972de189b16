"""Starting points: known-good configurations of each family, each with its written reason."""

from __future__ import annotations

from dataclasses import replace

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.agents.agent import Proposal
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.parameters import MIN_LAYERS_TO_SKIP, draft_vocab_grid, expressible
from draftsmith.tuner.space import normalise

BUSY = 4  # requests together from which verified rows are no longer nearly free


def starting_points(facts: SpaceFacts) -> list[Proposal]:
    """The best guess of every family first, then second guesses, so that a short budget still sees
    all families. Blocks shrink when many requests share a step, and at T > 0, where fewer drafts
    hold.
    """
    rules = {
        "ngram": _ngram,
        "suffix": _suffix,
        "recycle": _recycle,
        "early_exit": _early_exit,
        "draft_model": _draft_model,
    }
    lists = [
        [
            Proposal(config=normalise(config, facts), proposer="rules", why=why)
            for config, why in rules[family](facts)
        ]
        for family in facts.searched
    ]
    rounds = max((len(items) for items in lists), default=0)
    ordered = [items[i] for i in range(rounds) for items in lists if i < len(items)]
    unique: dict[SpecConfig, Proposal] = {}
    for proposal in ordered:
        held = normalise(replace(proposal.config, **facts.fixed), facts)
        if not facts.fixed or expressible(held, facts):
            unique.setdefault(held, replace(proposal, config=held))
    return list(unique.values())


def _block(facts: SpaceFacts, quiet: int) -> int:
    block = quiet if facts.concurrency < BUSY else max(1, quiet // 2)
    return max(1, block * 3 // 4) if facts.temperature > 0 else block


def _ngram(facts: SpaceFacts) -> list[tuple[SpecConfig, str]]:
    return [
        (
            SpecConfig(drafter="ngram", block_size=_block(facts, 5), match_min=2, match_max=4),
            "prompt lookup drafts for free; matches of two tokens or more and a short block "
            "waste few verified rows",
        ),
        (
            SpecConfig(
                drafter="ngram",
                block_size=_block(facts, 10),
                match_min=1,
                match_max=3,
                draft_budget="gain",
            ),
            "prompt lookup's published setting (longest match 3, ten tokens) for texts that copy "
            "long spans of their prompt, cut to what pays where they do not",
        ),
    ]


def _suffix(facts: SpaceFacts) -> list[tuple[SpecConfig, str]]:
    return [
        (
            SpecConfig(
                drafter="suffix",
                block_size=_block(facts, 8),
                match_max=24,
                spec_factor=1.0,
                min_token_prob=0.2,
            ),
            "suffix decoding drafts as long as its counts are sure: long spans when text repeats, "
            "almost nothing when it does not",
        ),
        (
            SpecConfig(
                drafter="suffix",
                block_size=_block(facts, 24),
                match_max=24,
                spec_factor=1.0,
                min_token_prob=0.1,
                draft_budget="gain",
            ),
            "suffix decoding's published depth, factor and probability, cut to what pays",
        ),
        (
            SpecConfig(
                drafter="suffix",
                block_size=_block(facts, 8),
                match_max=24,
                match_min=2,
                min_token_prob=0.2,
                fallback_size=2 if facts.concurrency < BUSY else 1,
            ),
            "suffix decoding of matches worth having, token recycling's one or two tokens where "
            "there is none",
        ),
    ]


def _recycle(facts: SpaceFacts) -> list[tuple[SpecConfig, str]]:
    budget = max(4, 24 // facts.concurrency)
    return [
        (
            SpecConfig(
                drafter="recycle", block_size=_block(facts, 4), tree="static", tree_budget=budget
            ),
            "token recycling needs siblings: its successors are right at rank two or three almost "
            "as often as at rank one",
        ),
        (
            SpecConfig(drafter="recycle", block_size=_block(facts, 3)),
            "token recycling as a short chain, where each verified row costs time",
        ),
    ]


def _early_exit(facts: SpaceFacts) -> list[tuple[SpecConfig, str]]:
    layers = facts.num_layers
    vocab = _trim(facts)
    points = [
        (
            SpecConfig(
                drafter="early_exit",
                exit_layer=max(1, layers // 4),
                block_size=_block(facts, 4),
                draft_vocab=vocab,
            ),
            "a quarter of the layers: where models trained with an exit loss are already right, "
            "and a draft step costs a quarter",
        ),
        (
            SpecConfig(
                drafter="early_exit",
                exit_layer=max(1, layers // 2),
                block_size=_block(facts, 3),
                draft_vocab=vocab,
            ),
            "half of the layers: more accepted, for models with weak early layers",
        ),
    ]
    if layers >= MIN_LAYERS_TO_SKIP:
        count = max(1, layers // 3)
        start = (layers - count) // 2
        points.append(
            (
                SpecConfig(
                    drafter="early_exit",
                    skip_layers=tuple(range(start, start + count)),
                    block_size=_block(facts, 3),
                    draft_vocab=vocab,
                ),
                "the middle third of the layers left out: they change the residual stream least in "
                "models that were not trained to exit",
            )
        )
    return points


def _draft_model(facts: SpaceFacts) -> list[tuple[SpecConfig, str]]:
    model = facts.draft_model
    return [
        (
            SpecConfig(drafter="draft_model", draft_model=model, block_size=_block(facts, 4)),
            "a chain of four from the small model: the usual optimum at acceptance around 0.7",
        ),
        (
            SpecConfig(
                drafter="draft_model",
                draft_model=model,
                block_size=_block(facts, 8),
                stop_threshold=0.4,
                draft_vocab=_trim(facts),
            ),
            "a longer chain that stops when the small model doubts, with a trimmed head",
        ),
    ]


def _trim(facts: SpaceFacts) -> int | None:
    """The middle of the grid of draft vocabularies; None when nothing is ranked."""
    grid = draft_vocab_grid(facts)
    return grid[len(grid) // 2]
