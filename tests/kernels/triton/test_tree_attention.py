"""Attention in Triton: reference, rows as stable as alone, ragged batches, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.configurations import Configuration, use_configurations
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.ragged import ragged_rows
from draftsmith.kernels.tree_attention import (
    AttentionShape,
    cost,
    plan,
    ragged_attention,
    tree_attention,
)
from tests.support.traffic import count_traffic

pytestmark = pytest.mark.usefixtures("triton", "small_blocks", "poisoned_empty")

CPU = torch.device("cpu")
SPLIT = 32


@pytest.fixture
def small_blocks() -> Iterator[None]:
    """Several splits and blocks in lengths that the interpreter finishes soon."""
    blocks = {"BLOCK_N": 16, "SPLIT": SPLIT}
    with use_configurations({"tree_attention": Configuration(blocks=blocks)}):
        yield


def _ancestors(parents: list[int]) -> torch.Tensor:
    """``[n, n]`` bool: a node sees itself and its ancestors."""
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask


def _caches(
    shape: tuple[int, int, int, int], dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k = torch.randn(shape, generator=generator).to(dtype)
    return k, torch.randn(shape, generator=generator).to(dtype)


def _queries(num_sequences: int, width: int, num_heads: int, head_dim: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    return torch.randn(num_sequences, width, num_heads, head_dim, generator=generator)


def _poison_unseen(
    caches: tuple[torch.Tensor, torch.Tensor], slots: list[int], kept: list[int]
) -> None:
    """NaN in every row that no query may see: whole other slots, and rows from ``kept`` on."""
    for cache in caches:
        for slot in range(cache.shape[0]):
            first = kept[slots.index(slot)] if slot in slots else 0
            cache[slot, :, first:] = torch.nan


@pytest.mark.parametrize(
    ("q_type", "cache_type", "tolerance"),
    [
        (torch.float32, torch.float32, 1e-5),
        (torch.float32, torch.bfloat16, 1e-5),
        (torch.bfloat16, torch.bfloat16, 2**-6),
        (torch.float16, torch.float16, 2**-9),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 20), (7, 1, 64), (20, 1, 16), (2, 2, 5)]
)
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (6, None), (None, 2.5), (40, 2.5)])
def test_attention_is_that_of_the_reference(
    q_type: torch.dtype,
    cache_type: torch.dtype,
    tolerance: float,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None,
    softcap: float | None,
) -> None:
    """A long, an empty and a short sequence, padding rows, draft rows before the new ones."""
    caches = _caches((3, num_kv_heads, 80, head_dim), cache_type)
    _poison_unseen(caches, [2, 0, 1], [70 + 3 + 5, 3 + 2, 9 + 3])
    q = _queries(3, 5, num_heads, head_dim).to(q_type)
    visible = torch.zeros(3, 5, 8, dtype=torch.bool)
    visible[:, :, :3] = torch.tensor([True, False, True])
    visible[0, :, 3:] = _ancestors([-1, 0, 0, 1, 2])
    visible[1, :2, 3:5] = _ancestors([-1, 0])
    for mask in (None, visible):
        options: dict[str, Any] = dict(
            slots=[2, 0, 1],
            lengths=[70, 0, 9],
            widths=[5, 2, 0],
            offset=3,
            visible=mask,
            scale=head_dim**-0.5,
            window=window,
            softcap=softcap,
        )
        out = tree_attention(q, *caches, **options)
        with use_backend("reference"):
            wanted = tree_attention(q.float(), *caches, **options)
        torch.testing.assert_close(out.float(), wanted, rtol=0, atol=tolerance)
        assert out.dtype == q_type and (out[1, 2:] == 0).all() and (out[2] == 0).all()


trees = st.lists(st.integers(0, 10**6), min_size=0, max_size=12).map(
    lambda picks: [-1] + [pick % (index + 1) for index, pick in enumerate(picks)]
)


@given(
    parents=trees,
    length=st.integers(0, 70),
    window=st.none() | st.integers(1, 40),
    bf16=st.booleans(),
    order=st.randoms(use_true_random=False),
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_tree_row_has_the_bits_of_its_path_decoded_alone(
    parents: list[int], length: int, window: int | None, bf16: bool, order: Any
) -> None:
    """As on the CPU: among others, in a batch, ancestors scattered over the draft rows."""
    size = len(parents)
    dtype = torch.bfloat16 if bf16 else torch.float32
    k, v = _caches((2, 2, length + size, 16), dtype, seed=size)
    q = _queries(1, size, 6, 16).to(dtype)
    visible = _ancestors(parents)
    shared: dict[str, Any] = dict(scale=0.25, window=window)
    batch = tree_attention(
        *(q.expand(2, -1, -1, -1), k, v),
        slots=[1, 0],
        lengths=[length, length // 2],
        widths=[size, size // 2],
        offset=0,
        visible=visible.expand(2, -1, -1),
        **shared,
    )
    for node in order.sample(range(size), min(size, 2)):
        path = visible[node].nonzero()[:, 0].tolist()
        rows = [*range(length), *(length + step for step in path)]
        lone_k, lone_v = k[1:, :, rows].contiguous(), v[1:, :, rows].contiguous()
        lone = tree_attention(
            *(q[:, node : node + 1], lone_k, lone_v),
            slots=[0],
            lengths=[len(rows) - 1],
            widths=[1],
            offset=0,
            visible=None,
            **shared,
        )
        assert torch.equal(batch[0, node], lone[0, 0]), f"node {node} of {parents}"


@pytest.mark.parametrize("window", [None, 20])
def test_prefill_in_one_chunk_has_the_bits_of_single_steps(window: int | None) -> None:
    k, v = _caches((1, 3, 70, 16), torch.bfloat16)
    q = _queries(1, 70, 9, 16).bfloat16()
    options: dict[str, Any] = dict(slots=[0], scale=0.25, window=window)
    whole = tree_attention(q, k, v, lengths=[0], widths=[70], offset=0, visible=None, **options)
    for row in (0, 5, 31, 32, 69):
        one = q[:, row : row + 1]
        alone = tree_attention(
            one, k, v, lengths=[row], widths=[1], offset=0, visible=None, **options
        )
        as_tree = tree_attention(
            *(one, k, v),
            **dict(lengths=[row // 2], widths=[1], offset=row - row // 2),
            visible=torch.ones(1, 1, row - row // 2 + 1, dtype=torch.bool),
            **options,
        )
        assert torch.equal(alone[0, 0], whole[0, row])
        assert torch.equal(as_tree[0, 0], whole[0, row])


def test_rows_have_the_same_bits_in_several_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small workspace cuts the rows into chunks of three, the last of one."""
    k, v = _caches((2, 2, 60, 16), torch.float32)
    q = _queries(2, 7, 4, 16)
    visible = _ancestors([-1, 0, 0, 1, 3, 2, 5]).expand(2, -1, -1)
    for mask in (None, visible):
        options: dict[str, Any] = dict(
            slots=[0, 1], lengths=[50, 33], widths=[7, 5], offset=0, visible=mask, scale=0.25
        )
        whole = tree_attention(q, k, v, **options)
        with monkeypatch.context() as patch, count_traffic() as traffic:
            patch.setattr(plan, "WORKSPACE_BYTES", 3 * 4 * 2 * 4 * 2 * (16 + 2))
            assert torch.equal(tree_attention(q, k, v, **options), whole)
            wanted = _cost(mask, None, [50, 33], [7, 5], 7, 0)
        assert traffic.launches.by_function == {"attention_kernel": 3, "reduce_kernel": 3}
        assert traffic.cost == wanted


def _cost(
    visible: torch.Tensor | None,
    window: int | None,
    lengths: list[int],
    widths: list[int],
    max_width: int,
    offset: int,
) -> Any:
    shape = AttentionShape(
        num_heads=4, num_kv_heads=2, head_dim=16, q_size=4, cache_size=4, window=window
    )
    return cost(
        shape,
        lengths=lengths,
        widths=widths,
        max_width=max_width,
        offset=offset,
        counts=None if visible is None else visible.sum(2).tolist(),
    )


@pytest.mark.parametrize("window", [None, 1, 20, 45])
@pytest.mark.parametrize("is_tree", [False, True])
def test_bytes_and_launches_are_those_of_the_formula(window: int | None, is_tree: bool) -> None:
    """Lengths around the edges of splits and blocks, an empty sequence, a padded one."""
    lengths, widths = [70, 64, 0, 15], [3, 12, 1, 0]
    k, v = _caches((4, 2, 90, 16), torch.float32)
    visible = torch.zeros(4, 12, 14, dtype=torch.bool)
    visible[:, :, 2:] = _ancestors([-1, 0, 1, 1, 3, 4, 4, 0, 7, 8, 9, 9])
    for b, width in enumerate(widths):
        visible[b, width:] = False
    mask = visible if is_tree else None
    with count_traffic() as traffic:
        tree_attention(
            *(_queries(4, 12, 4, 16), k, v),
            **dict(slots=[3, 1, 0, 2], lengths=lengths, widths=widths, offset=2),
            **dict(visible=mask, scale=0.25, window=window),
        )
    assert traffic.cost == _cost(mask, window, lengths, widths, 12, 2)


def test_numbers_on_the_device_and_a_larger_bound_change_nothing() -> None:
    k, v = _caches((2, 2, 90, 16), torch.float32)
    q = _queries(2, 4, 4, 16)
    visible = _ancestors([-1, 0, 0, 2]).expand(2, -1, -1)
    for mask in (None, visible):
        numbers = ([1, 0], [40, 70], [4, 3])
        rows = ragged_rows(*numbers, offset=0, visible=mask, device=CPU)
        wanted = tree_attention(
            *(q, k, v),
            **dict(zip(("slots", "lengths", "widths"), numbers, strict=True)),
            **dict(offset=0, visible=mask, scale=0.25),
        )
        out = ragged_attention(q, k, v, replace(rows, max_length=300), scale=0.25)
        assert torch.equal(out, wanted)


def test_stale_rows_inside_the_draft_region_do_not_leak() -> None:
    caches = _caches((1, 2, 16, 32), torch.float32)
    for cache in caches:
        cache[0, :, 6], cache[0, :, 7] = torch.nan, torch.inf  # draft rows 2 and 3
    visible = torch.ones(1, 2, 6, dtype=torch.bool)
    visible[0, :, 2:4] = False
    out = tree_attention(
        *(torch.ones(1, 2, 4, 32), *caches),
        **dict(slots=[0], lengths=[4], widths=[2], offset=4, visible=visible, scale=0.2),
    )
    assert out.isfinite().all()


@pytest.mark.parametrize("key", [0, 3, 40])
@pytest.mark.parametrize("place", [0, 1])
def test_a_key_or_value_of_nan_shows(place: int, key: int) -> None:
    caches = _caches((1, 1, 48, 16), torch.float32)
    caches[place][0, 0, key, 5] = torch.nan
    out = tree_attention(
        *(torch.ones(1, 1, 3, 16), *caches),
        **dict(slots=[0], lengths=[40], widths=[1], offset=0, visible=None, scale=0.2),
    )
    assert out[..., 5].isnan().all()


def test_rows_that_see_nothing_give_zeros() -> None:
    caches = _caches((1, 1, 8, 16), torch.float32)
    visible = torch.zeros(1, 2, 2, dtype=torch.bool)
    visible[0, 1, 0] = True
    options: dict[str, Any] = dict(slots=[0], lengths=[0], offset=0, visible=visible, scale=1.0)
    out = tree_attention(torch.ones(1, 2, 1, 16), *caches, widths=[2], **options)
    assert (out[0, 0] == 0).all()
    torch.testing.assert_close(out[0, 1, 0], caches[1][0, 0, 0])
    assert tree_attention(
        *(torch.ones(0, 2, 1, 16), *caches),
        **dict(slots=[], lengths=[], widths=[], offset=0, visible=None, scale=1.0),
    ).shape == (0, 2, 1, 16)


def test_large_scores_do_not_overflow() -> None:
    caches = _caches((1, 1, 40, 16), torch.bfloat16)
    q = torch.full((1, 4, 1, 16), 100.0)
    options: dict[str, Any] = dict(
        slots=[0], lengths=[30], widths=[4], offset=0, visible=None, scale=1.0
    )
    for softcap in (None, 30.0):
        out = tree_attention(q, *caches, softcap=softcap, **options)
        with use_backend("reference"):
            wanted = tree_attention(q, *caches, softcap=softcap, **options)
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-4)


def test_layer_view_of_a_larger_cache_is_read_in_place() -> None:
    k, v = _caches((4, 2, 2 * 12, 16), torch.bfloat16)
    k, v = k.view(4, 2, 2, 12, 16), v.view(4, 2, 2, 12, 16)
    options: dict[str, Any] = dict(
        slots=[1], lengths=[7], widths=[2], offset=0, visible=None, scale=0.1
    )
    q = torch.ones(1, 2, 4, 16)
    assert torch.equal(
        tree_attention(q, k[2], v[2], **options),
        tree_attention(q, k[2].clone(), v[2].clone(), **options),
    )


def test_paths_name_the_visible_rows_in_order() -> None:
    visible = torch.zeros(2, 2, 5, dtype=torch.bool)
    visible[0, 0, [1, 3, 4]] = True
    visible[0, 1, [0, 2]] = True
    visible[1, 0, [2, 3]] = True
    rows = ragged_rows([0, 1], [9, 4], [2, 0], offset=3, visible=visible, device=CPU)
    assert rows.paths is not None and rows.max_length == 9
    assert rows.paths.counts.tolist() == [[3, 2], [1, 0]]  # width 0: rows from the third on are no
    assert rows.paths.rows[0, 0, :3].tolist() == [1, 3, 4]
    assert rows.paths.rows[0, 1, :2].tolist() == [0, 2]
    assert rows.paths.rows[1, 0, :1].tolist() == [2]


def test_types_and_paths_that_do_not_fit_are_refused() -> None:
    k, v = _caches((1, 1, 8, 16), torch.float32)
    rows = ragged_rows([0], [2], [1], offset=0, visible=torch.ones(1, 2, 2) > 0, device=CPU)
    with pytest.raises(KernelInputError, match="must be alike, or q fp32"):
        ragged_attention(torch.zeros(1, 2, 1, 16).bfloat16(), k, v, rows, scale=1.0)
    with pytest.raises(KernelInputError, match=r"\(1, 3, 3\) is needed"):
        ragged_attention(torch.zeros(1, 3, 1, 16), k, v, rows, scale=1.0)
