"""What the engine keeps between runs, which clock it reads, and which draft models it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import FakeTarget
from tablemodel import END, VOCAB, TableModel, table_of
from tinymodels import tiny_decoder

from draftsmith.engine.cache import CacheShape, KVCache
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.job import DraftInputs
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.types import Request, RowBatch, Sampling, SpecConfig

DRAFTED = SpecConfig(drafter="draft_model", draft_model="small", block_size=4)
SECOND = torch.device("cuda", 1)


def request_of(
    *prompt: int, max_tokens: int = 6, stop: tuple[int, ...] = (), request_id: str = "one"
) -> Request:
    sampling = Sampling(max_tokens=max_tokens, stop_token_ids=stop, ignore_eos=True)
    return Request(request_id=request_id, prompt_ids=prompt, sampling=sampling)


def test_a_kept_drafter_does_not_hide_the_stop_tokens_of_later_requests() -> None:
    """A trimmed head always keeps the stop tokens, also when an earlier run had others."""
    model = tiny_decoder()
    plain = request_of(5, 6, 7)
    stock = NativeEngine(model).run([plain], SpecConfig()).completions[0].token_ids
    second, stop = stock[1:3]
    assert stop not in stock[:2]
    config = replace(DRAFTED, draft_vocab=16)
    ranked = DraftInputs(draft_vocab_ids=(second, *(t for t in range(VOCAB) if t != stop)))
    stopped = request_of(5, 6, 7, stop=(stop,))

    def engine() -> NativeEngine:
        return NativeEngine(model, load_draft_model=lambda _: model)

    fresh = engine().run([stopped], config, inputs=ranked).completions[0]
    assert (fresh.token_ids, fresh.steps[1].accepted) == (stock[:3], 2)
    used = engine()
    before = used.run([plain], config, inputs=ranked).completions[0]
    again = used.run([stopped], config, inputs=ranked).completions[0]
    assert (again.token_ids, again.steps) == (fresh.token_ids, fresh.steps)
    assert used.run([plain], config, inputs=ranked).completions[0].steps == before.steps


def test_a_draft_vocabulary_too_small_for_the_stop_tokens_is_refused_whatever_ran_before() -> None:
    model = tiny_decoder()
    engine = NativeEngine(model, load_draft_model=lambda _: model)
    config = replace(DRAFTED, draft_vocab=2)
    inputs = DraftInputs(draft_vocab_ids=tuple(range(VOCAB)))
    engine.run([request_of(5)], config, inputs=inputs)
    with pytest.raises(EngineInputError, match="size 2 is under its 3 forced ids"):
        engine.run([request_of(5, stop=(8, 9))], config, inputs=inputs)


class Counting(FakeTarget):
    """Counts its caches. The forward that ``fail_at`` counts down to runs out of memory."""

    num_caches = 0
    fail_at = 0

    def new_cache(self, *, num_slots: int, capacity: int) -> KVCache:
        self.num_caches += 1
        return super().new_cache(num_slots=num_slots, capacity=capacity)


class CountingTable(TableModel, Counting):
    def forward(self, rows: RowBatch, cache: KVCache, **options: object):  # type: ignore[no-untyped-def, override]
        self.fail_at -= 1
        if self.fail_at == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(rows, cache, **options)  # type: ignore[arg-type]


def test_runs_of_like_length_share_a_cache_whatever_their_stop_tokens() -> None:
    model = CountingTable(table_of({}))
    engine = NativeEngine(model)
    for stop in ((), (8,), (8, 9)):
        for config in (SpecConfig(), SpecConfig(drafter="ngram")):
            engine.run([request_of(5, stop=stop)], config)
    assert model.num_caches == 2


def test_a_run_that_failed_while_it_admitted_a_prompt_keeps_no_slot() -> None:
    model = CountingTable(table_of({}))
    engine = NativeEngine(model)
    expected = engine.run([request_of(5)], SpecConfig()).completions[0].token_ids
    model.fail_at = 1
    with pytest.raises(torch.OutOfMemoryError):
        engine.run([request_of(5)], SpecConfig())
    assert engine.run([request_of(5)], SpecConfig()).completions[0].token_ids == expected
    assert expected[0] == END


class OnSecondDevice(KVCache):
    """A cache that says it is on a device which this machine need not have."""

    @property
    def device(self) -> torch.device:
        return SECOND


class RemoteTable(TableModel):
    def new_cache(self, *, num_slots: int, capacity: int) -> KVCache:
        return OnSecondDevice(
            CacheShape(num_layers=1, num_kv_heads=1, head_dim=1),
            num_slots=num_slots,
            capacity=capacity,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )


def test_times_are_taken_after_the_models_device_has_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    NativeEngine(TableModel(table_of({}))).run([request_of(5)], SpecConfig())
    assert waited == []
    NativeEngine(RemoteTable(table_of({}))).run([request_of(5)], SpecConfig())
    assert waited[0] == waited[-1] == SECOND and len(waited) >= 4  # run and request, begin and end


def small_engine(max_positions: int) -> NativeEngine:
    small = tiny_decoder(max_position_embeddings=max_positions)
    return NativeEngine(tiny_decoder(), load_draft_model=lambda _: small)


def test_a_draft_model_with_fewer_positions_than_a_request_needs_is_refused() -> None:
    engine = small_engine(16)
    fits, too_long = request_of(5, 6, 7, max_tokens=13), request_of(5, 6, 7, max_tokens=14)
    assert len(engine.run([fits], DRAFTED).completions[0].token_ids) == 13
    with pytest.raises(EngineInputError) as refusal:
        engine.run([fits, replace(too_long, request_id="two")], DRAFTED)
    for part in ("draft model tiny has 16 positions", "target tiny 2048", "two", "needs 17"):
        assert part in str(refusal.value)
    engine.run([too_long], SpecConfig())  # stock does not ask the draft model


@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_recycling_fills_up_chains_past_the_block_size(drafter: str) -> None:
    config = SpecConfig(drafter=drafter, block_size=1, match_min=2, fallback_size=3)
    engine, asked = NativeEngine(tiny_decoder()), request_of(5, 6, 7, max_tokens=24)
    stock = engine.run([asked], SpecConfig()).completions[0]
    done = engine.run([asked], config).completions[0]
    assert done.token_ids == stock.token_ids
    assert max(step.drafted for step in done.steps) == 3
