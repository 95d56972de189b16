"""The drafter protocol and the registry of names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftsmith.engine.cache import KVCache
from draftsmith.engine.model.model import Model
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, SlotView, SpecConfig


class Drafter(Protocol):
    """Proposes tokens for running slots.

    Deterministic given the committed tokens (T = 0) or given them and the request's shared noise (T
    > 0). State is per slot and starts afresh at ``reset``; nothing learned from one request reaches
    another unless a frozen store was handed in at construction (cases.md B1).
    """

    needs_logits: bool  # observe() wants the target's logits of every verified row

    def reset(self, slot: int) -> None:
        """A new request took ``slot`` (its prompt is in the first SlotView). Forget the slot's
        state.
        """
        ...

    def propose(self, views: Sequence[SlotView]) -> list[DraftTree]:
        """One tree per view, at most ``view.budget`` nodes, EMPTY when nothing is worth proposing.
        The target's cache holds every committed row but the root's; rows behind may be written
        freely.
        """
        ...

    def observe(self, commits: Sequence[Commit]) -> None:
        """Called once after each verify step with what was committed, before the next propose."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterContext:
    """What a drafter may be built from. ``draft_vocab_ids`` is the ranked trim (most frequent
    first), of which ``SpecConfig.draft_vocab`` takes a prefix; ``forced_ids`` always stay.
    ``references`` (request prompt ids -> stock's output ids) feeds the scripted drafter only.
    ``rank_acceptance`` [b] is P(rank-b child accepted), for static trees by dynamic programme.
    """

    target: Model
    cache: KVCache
    draft_model: Model | None = None
    draft_vocab_ids: tuple[int, ...] = ()
    forced_ids: tuple[int, ...] = ()
    references: dict[tuple[int, ...], tuple[int, ...]] | None = None
    suffix_store: tuple[tuple[int, ...], ...] = ()
    rank_acceptance: tuple[float, ...] = ()


DrafterFactory = Callable[[SpecConfig, DrafterContext], Drafter]
