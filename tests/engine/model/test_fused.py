"""All layers in one kernel call against the same layers operation by operation, each with the C++
products and attention, so that only norms, rotations and activations are computed in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from draftsmith.engine.batch import causal_rows
from draftsmith.engine.cache import KVCache
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.model.fused import FusedLayers
from draftsmith.engine.types import Hidden, RowBatch
from draftsmith.kernels.decoder_layers import DecoderLayers, DecoderShape
from draftsmith.kernels.errors import KernelInputError
from tests.support.tinymodels import CONFIGS, tiny_decoder

pytestmark = pytest.mark.usefixtures("cpp")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Odd everywhere: rows that fill no vector, heads that fill no step, groups of 1, 3 and 5 heads.
SHAPES = {
    "grouped": {"hidden": 48, "num_attention_heads": 6, "num_key_value_heads": 2},
    "one key head": {"hidden": 40, "num_attention_heads": 5, "num_key_value_heads": 1},
    "odd": {
        "hidden": 36,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 12,
        "intermediate_size": 77,
    },
    "wide head": {"hidden": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80},
}


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def ragged_rows() -> RowBatch:
    """A tree of five rows in slot 2 and a root with one child in slot 0, behind one draft row."""
    visible = torch.zeros(2, 5, 6, dtype=torch.bool)
    visible[0] = torch.tensor(
        [
            [1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 0, 0],
            [1, 1, 0, 1, 0, 0],
            [1, 1, 1, 0, 1, 0],
            [1, 1, 0, 1, 0, 1],
        ],
        dtype=torch.bool,
    )
    visible[1, :2] = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]], dtype=torch.bool)
    return RowBatch(
        slots=(2, 0),
        token_ids=torch.tensor([[5, 6, 7, 8, 9], [10, 11, 0, 0, 0]]),
        positions=torch.tensor([[10, 11, 11, 12, 12], [4, 5, 0, 0, 0]]),
        widths=(5, 2),
        offset=1,
        visible=visible,
    )


def filled_cache(model: Decoder) -> KVCache:
    """Nine committed rows in slot 2, three in slot 0, one draft row behind each."""
    cache = model.new_cache(num_slots=3, capacity=20)
    for slot, count in ((2, 9), (0, 3)):
        model.forward(causal_rows(slot, range(2, 3 + count), 0), cache)
        cache.lengths[slot] = count
    return cache


def both(model: Decoder, rows: RowBatch, **choice: object) -> tuple[list[Hidden], list[KVCache]]:
    """The same rows through the kernel and through single operations, from equal caches."""
    hidden, caches = [], []
    for fused in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FusedLayers, "is_available", property(lambda _, fused=fused: fused))
            cache = filled_cache(model)
            hidden.append(model.forward(rows, cache, **choice))  # type: ignore[arg-type]
        caches.append(cache)
    return hidden, caches


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    """The 16-bit caches may round a last bit the other way."""
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    scale = theirs.float().abs().max()
    assert ((ours.float() - theirs.float()).abs() <= tolerance * scale).all()


def compare(model: Decoder, dtype: torch.dtype) -> None:
    rows = ragged_rows()
    (ours, theirs), caches = both(model, rows)
    for b, real in enumerate(rows.widths):
        assert_near(ours.last[b, :real], theirs.last[b, :real], dtype)
        assert not ours.last[b, real:].any()
    for slot, count in ((2, 9 + 1 + 5), (0, 3 + 1 + 2)):
        for name in ("k", "v"):
            mine, other = (getattr(cache, name)[:, slot] for cache in caches)
            assert_near(mine[:, :, :count], other[:, :, :count], dtype)
            assert not mine[:, :, count:].any()  # nothing is written behind a padding row
    for cache in caches:
        assert not cache.k[:, 1].any() and not cache.v[:, 1].any()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_gives_what_single_operations_give(family: str) -> None:
    compare(tiny_decoder(family=family, num_layers=3), torch.float32)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_odd_shapes_in_every_type(shape: str, dtype: torch.dtype) -> None:
    compare(tiny_decoder(dtype=dtype, **SHAPES[shape]), dtype)  # type: ignore[arg-type]


def test_nothing_unwritten_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: like(*a, **k).fill_(torch.nan))
    model = tiny_decoder(num_layers=3)
    full = model.forward(causal_rows(0, range(5), 0), model.new_cache(num_slots=1, capacity=8))
    padded = model.forward(ragged_rows(), filled_cache(model), capture=[0, 2])
    for hidden in (full.last, padded.last, *padded.captured.values()):
        assert torch.isfinite(hidden).all()


def test_chosen_and_captured_layers() -> None:
    model = tiny_decoder(num_layers=4)
    (ours, theirs), _ = both(model, ragged_rows(), layers=[0, 2, 3], capture=[2, 0])
    assert set(ours.captured) == {0, 2}
    for index, captured in ours.captured.items():
        for b, real in enumerate(ragged_rows().widths):
            assert_near(captured[b, :real], theirs.captured[index][b, :real], torch.float32)
        assert not captured[1, 2:].any()


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company(family: str, dtype: torch.dtype) -> None:
    """Alone, in a chain of eleven, beside other slots, on one thread or three."""
    model = tiny_decoder(family=family, hidden=48, intermediate_size=90, dtype=dtype)
    tokens = list(range(3, 26))
    results = []
    before = torch.get_num_threads()
    for threads, widths in ((1, [1] * 23), (3, [11, 11, 1]), (2, [23]), (1, [4, 7, 12])):
        torch.set_num_threads(threads)
        cache = model.new_cache(num_slots=2, capacity=32)
        outputs, start = [], 0
        for width in widths:
            part = tokens[start : start + width]
            rows = causal_rows(1, part, start)
            if len(results) % 2:  # a neighbour in slot 0, whose rows come first
                other = torch.arange(40, 40 + width)[None]
                rows = RowBatch(
                    slots=(0, 1),
                    token_ids=torch.cat((other, rows.token_ids)),
                    positions=rows.positions.repeat(2, 1),
                    widths=(max(1, width - 2), width),
                )
            outputs.append(model.forward(rows, cache).last[-1])
            start += width
            for slot in rows.slots:
                cache.lengths[slot] = start
        results.append(torch.cat(outputs))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert torch.equal(results[0], other)


def test_no_rows_are_no_work() -> None:
    model = tiny_decoder()
    cache = model.new_cache(num_slots=1, capacity=4)
    rows = RowBatch(
        slots=(0,),
        token_ids=torch.zeros(1, 2, dtype=torch.int64),
        positions=torch.zeros(1, 2, dtype=torch.int64),
        widths=(0,),
    )
    assert not model.forward(rows, cache).last.any()
    assert not cache.k.any()


@pytest.mark.parametrize("token", [-1, 64])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    model = tiny_decoder()
    cache = model.new_cache(num_slots=1, capacity=4)
    with pytest.raises(KernelInputError, match=f"token id {token} is outside the vocabulary of 64"):
        model.forward(causal_rows(0, [3, token], 0), cache)


def test_weights_that_do_not_fit_are_refused_by_name() -> None:
    shape = DecoderShape(
        hidden=8,
        inner=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        gelu=False,
        norm_eps=1e-5,
        attention_scale=0.5,
        attention_softcap=None,
        embedding_scale=None,
    )
    with pytest.raises(KernelInputError, match="embedding is .* dense"):
        DecoderLayers(shape, torch.zeros(10, 9), [])
    with pytest.raises(KernelInputError, match="int8"):
        DecoderLayers(shape, torch.zeros(10, 8, dtype=torch.int8), [])


def test_positions_and_caches_of_another_kind_are_refused() -> None:
    model = tiny_decoder()
    cache = model.new_cache(num_slots=1, capacity=4)
    rows = causal_rows(0, [3, 5], 0)
    with pytest.raises(KernelInputError, match=r"positions torch.int32 \(1, 2\); both must be"):
        model.forward(replace(rows, positions=rows.positions.int()), cache)
    cache.v = cache.v.repeat(1, 1, 1, 2, 1)[:, :, :, : cache.capacity]
    with pytest.raises(KernelInputError, match="k_cache has shape .* they must be alike"):
        model.forward(rows, cache)
