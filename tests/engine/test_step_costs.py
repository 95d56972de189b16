"""The table of step costs: which steps are timed, and the bytes of the floor."""

from __future__ import annotations

from pathlib import Path

import pytest
from clock import FakeClock
from tinymodels import save_tiny, tiny_decoder

from draftsmith.engine.cache import KVCache
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.loading import load_target
from draftsmith.engine.model.model import Model
from draftsmith.engine.step_costs import CONTEXT, measure_floor, step_table
from draftsmith.engine.types import Hidden, RowBatch
from draftsmith.kernels.backend import describe


class Watched:
    """A model that notes its steps' shapes, and for which a row costs a second."""

    def __init__(self, clock: FakeClock) -> None:
        self._inner = tiny_decoder()
        self._clock = clock
        self.shapes: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def forward(self, rows: RowBatch, cache: KVCache, **kwargs: object) -> Hidden:
        if rows.positions.min() == CONTEXT:  # not the prefill
            self.shapes.append(rows.widths)
        self._clock.advance(sum(rows.widths))
        return self._inner.forward(rows, cache)


def test_every_shape_is_timed_in_every_round_and_the_first_round_is_not_counted() -> None:
    clock = FakeClock(tick_s=0.25)
    model = Watched(clock)
    costs = step_table(model, clock, batches=(1, 3), rows=(1, 4), rounds=2)  # type: ignore[arg-type]
    assert [(cost.batch, cost.rows) for cost in costs] == [(1, 1), (1, 4), (3, 1), (3, 4)]
    assert [cost.layers_s for cost in costs] == [1.25, 4.25, 3.25, 12.25]
    assert {cost.head_s for cost in costs} == {0.25}
    assert sorted(model.shapes) == sorted([(1,), (4,), (1,) * 3, (4,) * 3] * 3)
    assert model.shapes[:4] != model.shapes[4:8]  # another one begins


def test_a_model_with_too_few_positions_is_refused() -> None:
    model = tiny_decoder(max_position_embeddings=32)
    with pytest.raises(EngineInputError, match="has 32 positions: too few for a step of 64"):
        step_table(model, FakeClock(), rows=(64,))


def test_the_floor_of_packed_weights_is_what_memory_holds(tmp_path: Path) -> None:
    save_tiny(tmp_path, hidden=64, vocab_size=512, tie_word_embeddings=True)
    sizes = {}
    for form in ("plain", "auto"):
        model = load_target(TargetRef(path=str(tmp_path), weights=form)).model  # type: ignore[arg-type]
        floor = measure_floor(model, FakeClock(tick_s=1.0), rounds=1)
        assert floor.layers_bytes + floor.head_bytes == model.info.weight_bytes  # tied
        sizes[form] = floor
    assert sizes["plain"].head_bytes == 512 * 64 * 2
    if describe().backend == "cpp":
        assert sizes["auto"].head_bytes < 0.8 * sizes["plain"].head_bytes
        assert sizes["auto"].layers_bytes < 0.9 * sizes["plain"].layers_bytes


@pytest.mark.parametrize("tied", [True, False])
def test_the_floor_reads_each_weight_once_and_no_embedding_table(tied: bool) -> None:
    model: Model = tiny_decoder(tie_word_embeddings=tied)
    floor = measure_floor(model, FakeClock(tick_s=1.0), rounds=1)
    table = 64 * 32 * 4  # vocabulary x hidden x fp32
    assert floor.head_bytes == table
    assert floor.layers_bytes == model.info.weight_bytes - (1 if tied else 2) * table
    assert floor.layers_s == pytest.approx(floor.layers_bytes / floor.bytes_per_s)
