"""Where a step's time goes: whose calls count as whose, prefill apart, the rest is the host's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from clock import FakeClock
from tinymodels import tiny_decoder

from draftsmith.engine.cache import KVCache
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.step_parts import step_parts
from draftsmith.engine.types import HeadRows, Hidden, Request, RowBatch, Sampling, SpecConfig
from draftsmith.kernels.draft_head import TopLogits

FORWARD_S, HEAD_S, PART_S = 5.0, 2.0, 1.0


class Slow:
    """A model whose calls take fixed times on a clock that only they move."""

    def __init__(self, clock: FakeClock, forward_s: float, head_s: float) -> None:
        self._inner = tiny_decoder(num_layers=4)
        self._clock = clock
        self._forward_s = forward_s
        self._head_s = head_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def forward(
        self,
        rows: RowBatch,
        cache: KVCache,
        *,
        layers: tuple[int, ...] | None = None,
        capture: tuple[int, ...] = (),
    ) -> Hidden:
        self._clock.advance(self._forward_s if layers is None else PART_S)
        return self._inner.forward(rows, cache, layers=layers, capture=capture)

    def head(self, hidden: torch.Tensor, trimmed: HeadRows | None = None) -> torch.Tensor:
        self._clock.advance(self._head_s)
        return self._inner.head(hidden, trimmed)

    def top(self, *arguments: Any, **options: Any) -> TopLogits:
        self._clock.advance(self._head_s)
        return self._inner.top(*arguments, **options)


def requests(max_tokens: int = 9) -> list[Request]:
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    prompts = ((5, 6, 7), (8, 9, 8, 9, 8))
    return [
        Request(request_id=str(i), prompt_ids=ids, sampling=sampling)
        for i, ids in enumerate(prompts)
    ]


def test_stock_is_layers_and_head_without_the_prefill() -> None:
    clock = FakeClock()
    parts = step_parts(Slow(clock, FORWARD_S, HEAD_S), requests(), {}, clock)  # type: ignore[arg-type]
    [stock] = parts.values()
    assert stock.num_steps == 2 * 8  # the first token of each is the prefill's
    assert (stock.layers_s, stock.head_s, stock.draft_s) == (FORWARD_S, HEAD_S, 0.0)
    assert stock.host_s == pytest.approx(0.0)


@pytest.mark.parametrize(
    "config",
    [
        SpecConfig(drafter="draft_model", draft_model="small", block_size=3),
        SpecConfig(drafter="early_exit", exit_layer=2, block_size=3),
    ],
)
def test_models_that_draft_count_apart(config: SpecConfig) -> None:
    clock = FakeClock()
    parts = step_parts(
        Slow(clock, FORWARD_S, HEAD_S),  # type: ignore[arg-type]
        requests(),
        {"drafted": config},
        clock,
        load_draft_model=lambda _: Slow(clock, 0.5, 0.25),  # type: ignore[arg-type,return-value]
    )["drafted"]
    assert (parts.layers_s, parts.head_s) == (FORWARD_S, HEAD_S)
    assert parts.draft_s > 0.0 and parts.host_s == pytest.approx(0.0)


def test_what_no_model_call_explains_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    keep = KVCache.keep

    def slow_keep(cache: KVCache, slot: int, draft_rows: range) -> None:
        clock.advance(4.0)
        keep(cache, slot, draft_rows)

    monkeypatch.setattr(KVCache, "keep", slow_keep)
    config = SpecConfig(drafter="ngram", block_size=2)
    parts = step_parts(Slow(clock, FORWARD_S, HEAD_S), requests(), {"it": config}, clock)  # type: ignore[arg-type]
    for part in parts.values():
        assert (part.host_s, part.step_s) == (pytest.approx(4.0), pytest.approx(11.0))


def test_outputs_of_one_token_have_no_step() -> None:
    clock = FakeClock()
    with pytest.raises(EngineInputError, match="nothing to time"):
        step_parts(Slow(clock, 1.0, 1.0), requests(1), {}, clock)  # type: ignore[arg-type]
