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
    """How to draft. ``head`` is the trimmed head of ``model`` (None = its whole vocabulary);
    ``sampled`` draws tokens from the warped distribution and returns it, for rejection and block
    verification.
    """

    shape: TreeTemplate | DynamicShape
    model: Model
    head: HeadRows | None = None
    stop_threshold: float = 0.0
    sampled: bool = False

    @property
    def token_ids(self) -> torch.Tensor | None:
        """The ids that the draft head's columns stand for; None where a column is its id."""
        return None if self.head is None else self.head.token_ids

    @property
    def num_ids(self) -> int:
        return self.model.info.vocab_size if self.head is None else self.head.token_ids.numel()


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
        model=model,
        head=head,
        stop_threshold=config.stop_threshold,
        sampled=config.verifier != "coupled",
    )
