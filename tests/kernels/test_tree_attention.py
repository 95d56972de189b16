"""Attention over a draft tree against the reference, and the stability of its rows."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftsmith.kernels.backend import describe, use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.tree_attention import tree_attention

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


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


def _poison_unseen(
    caches: tuple[torch.Tensor, torch.Tensor], slots: list[int], kept: list[int]
) -> None:
    """NaN in every row that no query may see: whole other slots, and rows from ``kept`` on."""
    for cache in caches:
        for slot in range(cache.shape[0]):
            first = kept[slots.index(slot)] if slot in slots else 0
            cache[slot, :, first:] = torch.nan


def _both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """The C++ form's result, after holding it to the reference's."""
    out = tree_attention(q, k, v, **options)
    with use_backend("reference"):
        reference = tree_attention(q, k, v, **options)
    torch.testing.assert_close(out, reference, rtol=0, atol=1e-5)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 48, 20, 5, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(9, 3), (4, 4), (7, 1), (10, 2)])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("softcap", [None, 2.5])
def test_attention_is_that_of_the_reference(
    dtype: torch.dtype,
    head_dim: int,
    num_heads: int,
    num_kv_heads: int,
    window: int | None,
    softcap: float | None,
    cpp: None,
    poisoned_empty: None,
) -> None:
    caches = _caches((3, num_kv_heads, 31, head_dim), dtype)
    _poison_unseen(caches, [2, 0], [17 + 3 + 5, 3 + 2])
    q = torch.randn(2, 5, num_heads, head_dim, generator=torch.Generator().manual_seed(1))
    visible = torch.zeros(2, 5, 8, dtype=torch.bool)
    visible[:, :, :3] = torch.tensor([True, False, True])
    visible[0, :, 3:] = _ancestors([-1, 0, 0, 1, 2])
    visible[1, :2, 3:5] = _ancestors([-1, 0])
    for mask in (None, visible):
        out = _both(
            *(q, *caches),
            slots=[2, 0],
            lengths=[17, 0],
            widths=[5, 2],
            offset=3,
            visible=mask,
            scale=head_dim**-0.5,
            window=window,
            softcap=softcap,
        )
        assert out.isfinite().all()
        assert (out[1, 2:] == 0).all()


def test_stale_rows_inside_the_draft_region_do_not_leak(cpp: None) -> None:
    caches = _caches((1, 2, 16, 32), torch.float32)
    for cache in caches:
        cache[0, :, 6] = torch.nan  # draft row 2: seen by nobody
        cache[0, :, 7] = torch.inf  # draft row 3: seen by nobody
    visible = torch.ones(1, 2, 6, dtype=torch.bool)
    visible[0, :, 2:4] = False
    visible[0, 0, 5] = False
    options: dict[str, Any] = dict(
        slots=[0], lengths=[4], widths=[2], offset=4, visible=visible, scale=0.2
    )
    assert _both(torch.ones(1, 2, 4, 32), *caches, **options).isfinite().all()


@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("key", [0, 3, 8])
def test_a_key_or_value_of_nan_shows(key: int, softcap: float | None, cpp: None) -> None:
    for place in (0, 1):
        caches = _caches((1, 1, 16, 16), torch.float32)
        caches[place][0, 0, key, 5] = torch.nan
        out = tree_attention(
            *(torch.ones(1, 1, 3, 16), *caches),
            **dict(slots=[0], lengths=[9], widths=[1], offset=0, scale=0.2),
            **dict(visible=None, softcap=softcap),
        )
        assert out[..., 5].isnan().all()


def test_row_that_sees_nothing_gives_zeros(cpp: None) -> None:
    caches = _caches((1, 1, 8, 16), torch.float32)
    visible = torch.zeros(1, 2, 2, dtype=torch.bool)
    visible[0, 1, 0] = True
    options: dict[str, Any] = dict(
        slots=[0], lengths=[0], widths=[2], offset=0, visible=visible, scale=1.0
    )
    out = _both(torch.ones(1, 2, 1, 16), *caches, **options)
    assert (out[0, 0] == 0).all()
    torch.testing.assert_close(out[0, 1, 0], caches[1][0, 0, 0])


def test_window_counts_logical_positions_not_cache_rows(cpp: None) -> None:
    """A row whose ancestors lie far behind in the draft region keeps them inside the window."""
    caches = _caches((1, 1, 32, 16), torch.float32)
    visible = torch.zeros(1, 1, 20, dtype=torch.bool)
    visible[0, 0, [1, 19]] = True
    out = _both(
        *(torch.ones(1, 1, 1, 16), *caches),
        slots=[0],
        lengths=[5],
        widths=[1],
        offset=19,
        visible=visible,
        scale=0.25,
        window=3,
    )
    rows = torch.tensor([4, 5 + 1, 5 + 19])
    weights = (caches[0][0, 0, rows].sum(1) * 0.25).softmax(0)
    torch.testing.assert_close(out[0, 0, 0], weights @ caches[1][0, 0, rows])


def test_large_scores_do_not_overflow(cpp: None) -> None:
    caches = _caches((1, 1, 40, 64), torch.bfloat16)
    q = torch.full((1, 4, 1, 64), 100.0)
    options: dict[str, Any] = dict(slots=[0], lengths=[30], widths=[4], offset=0, visible=None)
    out = _both(q, *caches, scale=1.0, **options)
    assert out.isfinite().all()
    assert _both(q, *caches, scale=1.0, softcap=30.0, **options).isfinite().all()


trees = st.lists(st.integers(0, 10**6), min_size=0, max_size=20).map(
    lambda picks: [-1] + [pick % (index + 1) for index, pick in enumerate(picks)]
)


@given(
    parents=trees,
    length=st.integers(0, 40),
    window=st.none() | st.integers(1, 12),
    bf16=st.booleans(),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_tree_row_has_the_bits_of_its_path_decoded_alone(
    parents: list[int], length: int, window: int | None, bf16: bool, order: Any
) -> None:
    """Each node of a random tree, its ancestors scattered over the draft rows, among others, in a
    batch, gives bit for bit what one-row steps down its path give.
    """
    if describe().backend != "cpp":
        pytest.skip("the reference is not row-stable")
    size = len(parents)
    dtype = torch.bfloat16 if bf16 else torch.float32
    k, v = _caches((2, 2, length + size, 32), dtype, seed=size)
    q = torch.randn(1, size, 6, 32, generator=torch.Generator().manual_seed(length))
    visible = _ancestors(parents)
    shared: dict[str, Any] = dict(scale=32**-0.5, window=window)
    batch = tree_attention(
        *(q.expand(2, -1, -1, -1), k, v),
        slots=[1, 0],
        lengths=[length, length],
        widths=[size, size // 2],
        offset=0,
        visible=visible.expand(2, -1, -1),
        **shared,
    )
    for node in order.sample(range(size), min(size, 4)):
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


def test_prefill_in_one_chunk_has_the_bits_of_single_steps(cpp: None) -> None:
    k, v = _caches((1, 3, 70, 64), torch.bfloat16)
    q = torch.randn(1, 70, 9, 64, generator=torch.Generator().manual_seed(2))
    options: dict[str, Any] = dict(slots=[0], visible=None, scale=0.125)
    whole = tree_attention(q, k, v, lengths=[0], widths=[70], offset=0, **options)
    for row in (0, 1, 7, 8, 9, 33, 69):
        one = q[:, row : row + 1]
        lone = tree_attention(one, k, v, lengths=[row], widths=[1], offset=0, **options)
        behind = tree_attention(
            one, k, v, lengths=[row // 2], widths=[1], offset=row - row // 2, **options
        )
        assert torch.equal(lone[0, 0], whole[0, row])
        assert torch.equal(behind[0, 0], whole[0, row])


def test_rows_have_the_same_bits_on_any_number_of_threads(cpp: None, threads: None) -> None:
    k, v = _caches((2, 3, 300, 64), torch.bfloat16)
    q = torch.randn(2, 9, 9, 64, generator=torch.Generator().manual_seed(3))
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(
            tree_attention(
                *(q, k, v),
                slots=[0, 1],
                lengths=[290, 100],
                widths=[9, 7],
                offset=0,
                visible=None,
                scale=0.125,
            )
        )
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_layer_view_of_a_larger_cache_is_read_in_place(cpp: None) -> None:
    k, v = _caches((4, 2, 2 * 12, 32), torch.bfloat16)
    k, v = k.view(4, 2, 2, 12, 32), v.view(4, 2, 2, 12, 32)
    q = torch.ones(1, 2, 4, 32)
    options: dict[str, Any] = dict(
        slots=[1], lengths=[7], widths=[2], offset=0, visible=None, scale=0.1
    )
    assert torch.equal(
        tree_attention(q, k[2], v[2], **options),
        tree_attention(q, k[2].clone(), v[2].clone(), **options),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": [3]}, "slot 3 is outside the cache's 2 slots"),
        ({"slots": [0, 1]}, "2 slots, 1 lengths"),
        ({"lengths": [7]}, "7 committed and 2 draft rows exceed the capacity of 8"),
        ({"lengths": [-1]}, "exceed the capacity"),
        ({"widths": [3]}, "width 3 is outside 0 .. 2"),
        ({"offset": -1}, "offset is -1"),
        ({"window": 0}, "window is 0"),
        ({"softcap": -1.0}, "softcap is -1.0"),
        ({"visible": torch.ones(1, 2, 3, dtype=torch.bool)}, r"\(1, 2, 2\) is needed"),
        ({"visible": torch.ones(1, 2, 2)}, "torch.bool"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    k, v = _caches((2, 1, 8, 16), torch.float32)
    options: dict[str, Any] = dict(
        slots=[0], lengths=[3], widths=[2], offset=0, visible=None, scale=1.0
    )
    with pytest.raises(KernelInputError, match=message):
        tree_attention(torch.zeros(1, 2, 1, 16), k, v, **(options | change))


def test_caches_that_do_not_fit_are_refused() -> None:
    k, v = _caches((2, 2, 8, 16), torch.float32)
    options: dict[str, Any] = dict(
        slots=[0], lengths=[3], widths=[2], offset=0, visible=None, scale=1.0
    )
    with pytest.raises(KernelInputError, match="heads must be a multiple"):
        tree_attention(torch.zeros(1, 2, 3, 16), k, v, **options)
    with pytest.raises(KernelInputError, match="differ in shape"):
        tree_attention(torch.zeros(1, 2, 2, 16), k, v[:1], **options)
    with pytest.raises(KernelInputError, match="must be dense"):
        tree_attention(torch.zeros(1, 2, 2, 8), k[..., :8], v[..., :8], **options)
