"""Self-drafting by the target's own layers: leave after ``exit_layer`` layers, or leave out
``skip_layers``.

LayerSkip (Elhoushi et al. 2024) and Draft & Verify (Zhang et al. 2023). The drafter reads the
target's cache: the committed rows of the layers it runs are the target's own. Its draft rows go
behind them, and the verify pass writes over those. So it has no state at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.engine.batch import real_rows
from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.expansion import expand
from draftsmith.engine.drafters.plan import make_expansion
from draftsmith.engine.drafters.shapes import require_int
from draftsmith.engine.drafters.vocabulary import draft_head
from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.model.model import ModelInfo
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, RowBatch, SlotView, SpecConfig


class EarlyExitDrafter:
    """Chains, static and dynamic trees, over the whole or a trimmed vocabulary."""

    needs_logits = False

    def __init__(self, config: SpecConfig, context: DrafterContext) -> None:
        self._layers = draft_layers(config, context.target.info)
        self._target = context.target
        self._cache = context.cache
        head = draft_head(context.target, config.draft_vocab, context)
        self._plan = make_expansion(config, context, context.target, head)

    def reset(self, slot: int) -> None:
        """Nothing is kept between steps."""

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        return expand(views, self, self._plan).trees

    def observe(self, commits: Sequence[Commit]) -> None:
        """Nothing is learned."""

    def roots(self, views: Sequence[SlotView]) -> torch.Tensor:
        return self.nodes(
            RowBatch(
                slots=tuple(view.slot for view in views),
                token_ids=torch.tensor([[view.tokens[-1]] for view in views]),
                positions=torch.tensor([[len(view.tokens) - 1] for view in views]),
                widths=(1,) * len(views),
            )
        )

    def nodes(self, rows: RowBatch) -> torch.Tensor:
        hidden = self._target.forward(rows, self._cache, layers=self._layers).last
        return real_rows(hidden, rows.widths)

    def room(self, slot: int) -> int:
        return self._cache.capacity - self._cache.lengths[slot]


def draft_layers(config: SpecConfig, info: ModelInfo) -> tuple[int, ...]:
    """Layers that the drafter runs, ascending."""
    if not info.supports_layer_subsets:
        raise UnsupportedError(
            f"{info.name} ({info.family}) cannot run some of its layers only, as early_exit does;"
            " use another drafter"
        )
    last = info.num_layers - 1
    if config.skip_layers and config.exit_layer is not None:
        raise EngineInputError(
            f"exit_layer {config.exit_layer} and skip_layers {config.skip_layers} exclude each"
            " other; give one of them"
        )
    if config.skip_layers:
        for layer in config.skip_layers:
            require_int("a layer of skip_layers", layer, 0, last)
        kept = tuple(sorted(set(range(last + 1)) - set(config.skip_layers)))
        if not kept or len(kept) + len(config.skip_layers) != info.num_layers:
            raise EngineInputError(
                f"skip_layers {config.skip_layers} must name some of the {info.num_layers} layers"
                " once each and leave at least one"
            )
        return kept
    if config.exit_layer is None:
        raise EngineInputError(f"early_exit needs exit_layer (1..{last}) or skip_layers")
    if last < 1:
        raise EngineInputError(f"{info.name} has one layer, so there is nothing to exit from early")
    return tuple(range(require_int("exit_layer", config.exit_layer, 1, last)))
