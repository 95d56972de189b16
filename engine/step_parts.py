"""Where a decoding step's time goes: layers, head, drafting models, and the host.

Decoding itself runs, with the model's calls timed; what they do not explain is the host: proposing,
trees, masks, verification, commit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.job import STOCK, DraftInputs
from draftsmith.engine.model.model import Model, ModelInfo
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.timing import Clock
from draftsmith.engine.types import HeadRows, Hidden, Request, RowBatch, SpecConfig
from draftsmith.kernels.draft_head import TopLogits

Part = Literal["layers", "head", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Mean seconds of one decoding step of one request, prefill apart. ``draft_s`` are a drafter's
    calls of a model (its own, or a part of the target).
    """

    num_steps: int
    step_s: float
    layers_s: float
    head_s: float
    draft_s: float

    @property
    def host_s(self) -> float:
        return self.step_s - self.layers_s - self.head_s - self.draft_s


@dataclass(slots=True)
class Meter:
    """Seconds of model calls by part, since the prompt's own head call ended its prefill."""

    clock: Clock
    seconds: dict[Part, float]
    prefilling: bool = True

    def add(self, part: Part, seconds: float) -> None:
        if not self.prefilling:
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds
        elif part == "head":
            self.prefilling = False


class TimedModel:
    """A model whose calls are timed. ``draft``: all of it is a drafter's, not the target."""

    def __init__(self, model: Model, meter: Meter, *, draft: bool = False) -> None:
        self._model = model
        self._meter = meter
        self._draft = draft
        self._part_only = draft  # the last forward was a drafter's

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def new_cache(self, *, num_slots: int, capacity: int) -> KVCache:
        return self._model.new_cache(num_slots=num_slots, capacity=capacity)

    def trim_head(self, token_ids: Sequence[int]) -> HeadRows:
        return self._model.trim_head(token_ids)

    def forward(
        self,
        rows: RowBatch,
        cache: KVCache,
        *,
        layers: Sequence[int] | None = None,
        capture: Sequence[int] = (),
    ) -> Hidden:
        self._part_only = self._draft or layers is not None
        begin = self._meter.clock.now()
        hidden = self._model.forward(rows, cache, layers=layers, capture=capture)
        self._meter.add("draft" if self._part_only else "layers", self._meter.clock.now() - begin)
        return hidden

    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        begin = self._meter.clock.now()
        logits = self._model.head(hidden, trimmed)
        self._meter.add(self._head_part(trimmed), self._meter.clock.now() - begin)
        return logits

    def top(
        self,
        hidden: torch.Tensor,
        count: int,
        trimmed: HeadRows | None = None,
        *,
        with_log_sum: bool = False,
    ) -> TopLogits:
        begin = self._meter.clock.now()
        best = self._model.top(hidden, count, trimmed, with_log_sum=with_log_sum)
        self._meter.add(self._head_part(trimmed), self._meter.clock.now() - begin)
        return best

    def _head_part(self, trimmed: HeadRows | None) -> Part:
        return "draft" if self._part_only or trimmed is not None else "head"


def step_parts(
    model: Model,
    requests: Sequence[Request],
    configs: Mapping[str, SpecConfig],
    clock: Clock,
    *,
    inputs: DraftInputs | None = None,
    load_draft_model: Callable[[str], Model] | None = None,
) -> dict[str, StepParts]:
    """Decode ``requests`` one at a time under stock and every configuration, in turns, and say
    where a step's time went. The first request runs once more beforehand, not counted.
    """
    meter = Meter(clock, {})
    named = {STOCK: SpecConfig(), **configs}
    engine = NativeEngine(
        TimedModel(model, meter),
        clock=clock,
        load_draft_model=None
        if load_draft_model is None
        else lambda path: TimedModel(load_draft_model(path), meter, draft=True),
    )
    totals: dict[str, dict[str, float]] = {name: defaultdict(float) for name in named}
    for number, request in enumerate([*requests[:1], *requests]):
        names = list(named)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            meter.seconds, meter.prefilling = {}, True
            outcome = engine.run([request], named[name], inputs=inputs)
            if number == 0:
                continue
            [completion] = outcome.completions
            totals[name]["steps"] += len(completion.steps) - 1  # the first is the prefill's
            totals[name]["decode"] += completion.decode_s
            for part, seconds in meter.seconds.items():
                totals[name][part] += seconds
    return {name: _parts(total) for name, total in totals.items()}


def _parts(total: Mapping[str, float]) -> StepParts:
    steps = int(total["steps"])
    if not steps:
        raise EngineInputError("every output ended with its first token: nothing to time")
    return StepParts(
        num_steps=steps,
        step_s=total["decode"] / steps,
        layers_s=total["layers"] / steps,
        head_s=total["head"] / steps,
        draft_s=total["draft"] / steps,
    )
