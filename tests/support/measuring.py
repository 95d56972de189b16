"""Doubles for measuring: a decoder that costs fake time, corrupts itself or runs out of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftsmith.engine.job import MeasureJob, TargetRef
from draftsmith.engine.model.loading import LoadedTarget
from draftsmith.engine.types import Hidden, Request, RowBatch, Sampling, SpecConfig
from tests.support.clock import FakeClock
from tests.support.tinymodels import tiny_decoder

STOCK = SpecConfig()
NGRAM = SpecConfig(drafter="ngram")
ORACLE = SpecConfig(drafter="scripted", script="oracle")
WRONG = SpecConfig(drafter="scripted", script="wrong", block_size=8)


@dataclass
class CostlyModel:
    """A tiny decoder. Every forward advances ``clock`` by ``forward_s`` plus ``row_s`` a row, the
    very first one by ``first_s`` more; then ``disturb`` may raise or change the hidden rows.
    """

    clock: FakeClock
    forward_s: float = 1.0
    row_s: float = 0.0
    first_s: float = 0.0
    disturb: Callable[[RowBatch, torch.Tensor], torch.Tensor] | None = None

    def __post_init__(self) -> None:
        self.inner = tiny_decoder()
        self.num_forwards = 0
        self.num_caches = 0

    def new_cache(self, **size: int) -> Any:
        self.num_caches += 1
        return self.inner.new_cache(**size)

    def forward(self, rows: RowBatch, cache: Any, **kwargs: Any) -> Hidden:
        self.num_forwards += 1
        first_s = self.first_s if self.num_forwards == 1 else 0.0
        self.clock.advance(self.forward_s + first_s + self.row_s * sum(rows.widths))
        hidden = self.inner.forward(rows, cache, **kwargs)
        if self.disturb is None:
            return hidden
        return Hidden(self.disturb(rows, hidden.last), hidden.captured)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def loader_of(model: Any) -> Callable[[TargetRef], LoadedTarget]:
    return lambda ref: LoadedTarget(model=model, tokenizer=None, source_path=Path(ref.path))


def make_requests(
    count: int, *, max_tokens: int = 12, categories: str = "ab"
) -> tuple[Request, ...]:
    """Prompts of different lengths that repeat themselves, so that ngram finds matches."""
    return tuple(
        Request(
            request_id=f"r{index}",
            prompt_ids=tuple(3 + (index + position % 4) % 60 for position in range(8 + index)),
            sampling=Sampling(max_tokens=max_tokens, ignore_eos=True),
            category=categories[index % len(categories)],
        )
        for index in range(count)
    )


def make_job(
    configs: dict[str, SpecConfig], *, job_id: str = "job", num_requests: int = 3, **fields: Any
) -> MeasureJob:
    """A job on the ``tiny`` target in one thread, with stock added in front of ``configs``."""
    fields.setdefault("requests", make_requests(num_requests))
    fields.setdefault("timeout_s", 1e6)
    fields.setdefault("target", TargetRef(path="tiny", dtype="float32", num_threads=1))
    return MeasureJob(job_id=job_id, configs={"stock": STOCK, **configs}, **fields)
