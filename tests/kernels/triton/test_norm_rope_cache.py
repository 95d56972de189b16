"""Norms, rotation and the write into the cache in Triton: reference, padding, rows, bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.norm_rope_cache import HeadNorm, Rotation, cost, norm_rope_cache
from draftsmith.kernels.ragged import RaggedRows, ragged_rows
from tests.support.traffic import count_traffic

pytestmark = pytest.mark.usefixtures("triton", "poisoned_empty")

HEADS, KV_HEADS = 5, 2
SLOTS, LENGTHS, WIDTHS, WIDTH = [2, 0, 3], [7, 0, 11], [3, 0, 2], 3


def _rows(widths: list[int] = WIDTHS, offset: int = 2) -> RaggedRows:
    return ragged_rows(
        *(SLOTS, LENGTHS, widths), offset=offset, visible=None, device=torch.device("cpu")
    )


def _inputs(
    head_dim: int, dtype: torch.dtype, normed: bool, rotary: int
) -> tuple[torch.Tensor, dict[str, Any]]:
    generator = torch.Generator().manual_seed(head_dim)
    qkv = torch.randn(9, (HEADS + 2 * KV_HEADS) * head_dim, generator=generator).to(dtype)
    weight = torch.randn(HEADS + KV_HEADS, head_dim, generator=generator)
    tables = torch.randn(2, 20, max(rotary, 2), generator=generator)
    positions = torch.randint(0, 20, (9,), generator=generator)
    return qkv, dict(
        norm=HeadNorm(weight=weight, eps=1e-5) if normed else None,
        rotation=Rotation(cosine=tables[0], sine=tables[1], positions=positions)
        if rotary
        else None,
    )


def _caches(head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    k = torch.randn(4, KV_HEADS, 16, head_dim, generator=torch.Generator().manual_seed(9)).to(dtype)
    return k, -k


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize(("head_dim", "rotary"), [(32, 32), (20, 20), (24, 8), (16, 0)])
@pytest.mark.parametrize("normed", [False, True])
def test_results_are_those_of_the_reference(
    dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, rotary: int, normed: bool
) -> None:
    qkv, options = _inputs(head_dim, dtype, normed, rotary)
    caches, wanted_caches = _caches(head_dim, cache_dtype), _caches(head_dim, cache_dtype)
    q = norm_rope_cache(qkv, *caches, _rows(), **options)
    with use_backend("reference"):
        wanted = norm_rope_cache(qkv, *wanted_caches, _rows(), **options)
    rtol = {torch.float32: 2**-20, torch.bfloat16: 2**-7, torch.float16: 2**-10}
    for b, width in enumerate(WIDTHS):
        torch.testing.assert_close(
            q[b, :width], wanted[b, :width], rtol=rtol[dtype], atol=16 * rtol[torch.float32]
        )
        assert q[b, width:].isnan().all(), "padding rows are left alone"
    for cache, wanted_cache in zip(caches, wanted_caches, strict=True):
        torch.testing.assert_close(
            cache, wanted_cache, rtol=rtol[cache_dtype], atol=16 * rtol[torch.float32]
        )
        untouched = torch.ones(cache.shape, dtype=torch.bool)
        untouched[2, :, 9:12], untouched[3, :, 13:15] = False, False
        assert torch.equal(cache[untouched], wanted_cache[untouched])
    assert torch.equal(caches[1], wanted_caches[1]), "values are copies"


def test_rows_have_the_bits_they_have_alone() -> None:
    qkv, options = _inputs(32, torch.float32, True, 32)
    caches, alone = _caches(32, torch.bfloat16), _caches(32, torch.bfloat16)
    q = norm_rope_cache(qkv, *caches, _rows(), **options)
    rotation: Rotation = options["rotation"]
    for b, i in ((0, 0), (0, 2), (2, 1)):
        row = slice(WIDTH * b + i, WIDTH * b + i + 1)
        one = ragged_rows(
            *([SLOTS[b]], [LENGTHS[b] + 2 + i], [1]),
            **dict(offset=0, visible=None, device=torch.device("cpu")),
        )
        options["rotation"] = replace(rotation, positions=rotation.positions[row])
        assert torch.equal(norm_rope_cache(qkv[row], *alone, one, **options)[0, 0], q[b, i])
        for cache, lone in zip(caches, alone, strict=True):
            cache_row = LENGTHS[b] + 2 + i
            assert torch.equal(cache[SLOTS[b], :, cache_row], lone[SLOTS[b], :, cache_row])


@pytest.mark.parametrize(("normed", "rotary"), [(True, 24), (False, 8), (True, 0)])
def test_bytes_and_launches_are_those_of_the_formula(normed: bool, rotary: int) -> None:
    qkv, options = _inputs(24, torch.float32, normed, rotary)
    with count_traffic() as traffic:
        norm_rope_cache(qkv, *_caches(24, torch.bfloat16), _rows(), **options)
    assert traffic.cost == cost(
        **dict(widths=WIDTHS, max_width=WIDTH, num_heads=HEADS, num_kv_heads=KV_HEADS),
        **dict(head_dim=24, rotary_dim=rotary, element_size=4, cache_size=2),
        normed=normed,
    )


def test_arguments_that_do_not_fit_are_refused() -> None:
    qkv, options = _inputs(16, torch.float32, True, 16)
    k, v = _caches(16, torch.float32)
    with pytest.raises(KernelInputError, match="more than 4 heads of 16"):
        norm_rope_cache(qkv[:8], k, v, _rows(), **options)
    with pytest.raises(KernelInputError, match=r"\(7, 16\) is needed"):
        norm_rope_cache(
            qkv, k, v, _rows(), norm=HeadNorm(weight=torch.ones(16), eps=0.0), rotation=None
        )
    rotation: Rotation = options["rotation"]
    with pytest.raises(KernelInputError, match=r"int64 \(9,\) is needed"):
        norm_rope_cache(
            *(qkv, k, v, _rows()),
            norm=None,
            rotation=replace(rotation, positions=rotation.positions[:4]),
        )
    with pytest.raises(KernelInputError, match="even R of 16 at most"):
        norm_rope_cache(
            *(qkv, k, v, _rows()), norm=None, rotation=replace(rotation, sine=rotation.sine[:, :4])
        )
    with pytest.raises(KernelInputError, match="must be dense"):
        norm_rope_cache(qkv, k[..., :8], v[..., :8], _rows(), **options)
