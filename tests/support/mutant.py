"""What a mutant is: one fault planted in the running engine, and the requests that bring it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from losslessness import CONFIGS

from draftsmith.engine.types import SpecConfig

VOCAB = 64

SPECULATION: dict[str, SpecConfig] = {
    **CONFIGS,
    "scripted-tree": SpecConfig(
        drafter="scripted",
        script="random",
        accept_p=0.8,
        tree="static",
        branching=(3, 2, 1),
        block_size=3,
    ),
    "draft-model": SpecConfig(drafter="draft_model", draft_model="itself", block_size=4),
    "draft-model-tree": SpecConfig(
        drafter="draft_model",
        draft_model="itself",
        tree="static",
        branching=(2, 2, 1),
        block_size=3,
    ),
}

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``plant`` replaces functions or methods of the real engine. ``configs`` name entries of
    ``SPECULATION``; ``sampling`` are fields of ``Sampling`` for every request.
    """

    name: str
    fault: str
    plant: Plant
    configs: tuple[str, ...]
    sampling: Mapping[str, object] = field(default_factory=dict, hash=False)
    concurrency: int = 1
    family: str = "llama"

    @contextmanager
    def planted(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield
