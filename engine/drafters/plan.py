"""How a drafter with a head is to draft, checked against its model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.shapes import (
    DynamicShape,
    make_shape,
    require_shape,
    require_share,
)
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.model.model import Model
from draftsmith.engine.trees.static import TreeTemplate
from draftsmith.engine.types import HeadRows, SpecConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """How to draft. ``token_ids`` are the draft head's ids (None = the whole vocabulary of
    ``vocab_size``); ``sampled`` draws tokens from the warped distribution and returns it, for
    rejection and block verification.
    """

    shape: TreeTemplate | DynamicShape
    vocab_size: int
    eos_ids: tuple[int, ...]
    token_ids: torch.Tensor | None = None
    stop_threshold: float = 0.0
    sampled: bool = False


def make_expansion(
    config: SpecConfig, context: DrafterContext, model: Model, head: HeadRows | None
) -> Expansion:
    """``model`` drafts over ``head`` (None = its whole vocabulary)."""
    require_shape(config, ("chain", "static", "dynamic"))
    require_share("stop_threshold", config.stop_threshold)
    num_ids = model.info.vocab_size if head is None else head.token_ids.numel()
    if config.tree == "dynamic" and config.tree_top_k > num_ids:
        raise EngineInputError(
            f"tree_top_k {config.tree_top_k} is above the {num_ids} ids of the draft vocabulary;"
            " lower it"
        )
    return Expansion(
        shape=make_shape(config, context.rank_acceptance, max_ranks=num_ids),
        vocab_size=model.info.vocab_size,
        eos_ids=model.info.eos_token_ids,
        token_ids=None if head is None else head.token_ids,
        stop_threshold=config.stop_threshold,
        sampled=config.verifier != "coupled",
    )
