"""Drafters by name. The one place that knows them all; each is imported when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from draftsmith.engine.drafters.drafter import Drafter, DrafterContext, DrafterFactory
from draftsmith.engine.drafters.shapes import level_widths, make_shape
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.types import SpecConfig

NONE = "none"
_DRAFTERS: dict[str, tuple[str, str]] = {
    "ngram": ("ngram", "NgramDrafter"),
    "suffix": ("suffix", "SuffixDrafter"),
    "recycle": ("recycle", "RecycleDrafter"),
    "early_exit": ("early_exit", "EarlyExitDrafter"),
    "draft_model": ("draft_model", "DraftModelDrafter"),
    "scripted": ("scripted", "ScriptedDrafter"),
}
MATCHERS = ("ngram", "suffix")  # draft what followed a match; read ``fallback_size``
DRAFTER_NAMES = (NONE, *_DRAFTERS)
_VERIFIERS = ("coupled", "rejection", "block")


def make_drafter(config: SpecConfig, context: DrafterContext) -> Drafter | None:
    """The drafter of ``config``, None for "none". Raises EngineInputError or UnsupportedError for
    unknown names and for values or combinations that the drafter does not do.

    Rejection and block verification take every chain: a drafter without ``DraftTree.probs``
    proposes a point mass, which both rules verify exactly.
    """
    if config.verifier not in _VERIFIERS:
        raise EngineInputError(
            f"verifier {config.verifier!r} is unknown; use {', '.join(_VERIFIERS)}"
        )
    if config.drafter == NONE:
        return None
    if config.drafter not in _DRAFTERS:
        raise EngineInputError(
            f"drafter {config.drafter!r} is unknown; use {', '.join(DRAFTER_NAMES)}"
        )
    module_name, class_name = _DRAFTERS[config.drafter]
    module = import_module(f"draftsmith.engine.drafters.{module_name}")
    drafter = cast(DrafterFactory, getattr(module, class_name))(config, context)
    if config.drafter not in MATCHERS or config.fallback_size == 0:
        return drafter
    from draftsmith.engine.drafters.backed import BackedDrafter

    return BackedDrafter(drafter, config, context)


def draft_rows(config: SpecConfig, rank_acceptance: tuple[float, ...] = ()) -> int:
    """Cache rows behind the committed ones that drafting may write, the root's included; with fewer
    at hand a model drafter draws a smaller tree. 0 for drafters that run no model.
    """
    if config.drafter not in ("early_exit", "draft_model"):
        return 0
    return 1 + sum(level_widths(make_shape(config, rank_acceptance)))
