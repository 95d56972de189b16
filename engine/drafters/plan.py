"""From a configuration to the expansion of a drafter with a head."""

from __future__ import annotations

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.expansion import Expansion
from draftsmith.engine.drafters.shapes import (
    make_shape,
    require_shape,
    require_share,
)
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.model.model import Model
from draftsmith.engine.types import HeadRows, SpecConfig


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
