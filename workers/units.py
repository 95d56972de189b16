"""Which requests are timed together, and in which order the configurations take their turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftsmith.engine.types import Request
from draftsmith.engine.units import in_pieces, unit_size

MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of evidence: a prompt at concurrency 1, else a group that runs together."""

    index: int
    requests: tuple[Request, ...]

    @property
    def category(self) -> str:
        """The common category of its requests, else ``mixed``."""
        found = {request.category for request in self.requests}
        return found.pop() if len(found) == 1 else MIXED

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(request.request_id for request in self.requests)


def split_units(requests: Sequence[Request], concurrency: int) -> tuple[Unit, ...]:
    """Units in request order. A last group too small to fill the concurrency joins the one before
    it: it would time another load.
    """
    groups = in_pieces(requests, unit_size(concurrency), concurrency)
    return tuple(Unit(index, group) for index, group in enumerate(groups))


def turn_order(names: Sequence[str], turn: int) -> tuple[str, ...]:
    """The names rotated by ``turn``: with two of them A B, B A, A B ..."""
    start = turn % len(names)
    return (*names[start:], *names[:start])


def warm_up_requests(unit: Unit, num_tokens: int) -> tuple[Request, ...]:
    """The unit's requests cut to ``num_tokens`` output tokens."""
    return tuple(
        replace(
            request,
            sampling=replace(
                request.sampling,
                max_tokens=min(request.sampling.max_tokens, num_tokens),
                min_tokens=min(request.sampling.min_tokens, num_tokens),
            ),
        )
        for request in unit.requests
    )
