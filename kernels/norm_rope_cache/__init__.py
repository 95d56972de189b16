"""What stands between the q/k/v product and attention, in one pass: norms of q and k, rotation, and
the new keys and values into the cache.

qkv [B W, (Hq + 2 Hkv) D] fp32, bf16 or fp16: W rows of each of B sequences, q heads, then k, then
v. norm [Hq + Hkv, D] fp32, or None. cosine and sine [P, R] fp32, R <= D even, the sine of the first
half negated, row p for position p; or None. k_cache, v_cache [S, Hkv, C, D], a head's rows dense.

Formula by head: x = x * rsqrt(mean x^2 + eps) * norm; then for d < R: x[d] = x[d] cos[d] +
x[(d + R/2) mod R] sin[d]; in fp32, rounded once. Row i < widths[b] of sequence b goes to cache row
lengths[b] + offset + i of slots[b]; rows past the width write nothing. Gives q [B, W, Hq, D] in
qkv's dtype, undefined in padding rows.

Bytes (``cost``): q and k read twice (the partner in the rotation; once without), v once, tables and
norm once a head, everything written once. Floor: the rows once each way over the bandwidth.
Tolerance: 2^-20 of the head's largest number, and the rounding to the result's dtype.

Why a kernel: torch makes some 25 launches of it.
"""

from __future__ import annotations

import torch

from draftsmith.kernels.backend import form_for
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.norm_rope_cache.cost import cost
from draftsmith.kernels.norm_rope_cache.records import HeadNorm, Rotation
from draftsmith.kernels.norm_rope_cache.reference import norm_rope_cache_reference
from draftsmith.kernels.ragged import RaggedRows


def norm_rope_cache(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: RaggedRows,
    *,
    norm: HeadNorm | None,
    rotation: Rotation | None,
) -> torch.Tensor:
    """See the module's docstring. KernelInputError for shapes or types that do not fit."""
    _check(qkv, k_cache, v_cache, rows, norm, rotation)
    if form_for("norm_rope_cache", qkv) == "triton":
        from draftsmith.kernels.norm_rope_cache.triton import norm_rope_cache_triton

        return norm_rope_cache_triton(qkv, k_cache, v_cache, rows, norm=norm, rotation=rotation)
    return norm_rope_cache_reference(qkv, k_cache, v_cache, rows, norm=norm, rotation=rotation)


def _check(
    qkv: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: RaggedRows,
    norm: HeadNorm | None,
    rotation: Rotation | None,
) -> None:
    if k_cache.dim() != 4 or k_cache.shape != v_cache.shape or k_cache.stride() != v_cache.stride():
        raise KernelInputError(
            f"k_cache has shape {tuple(k_cache.shape)}, v_cache {tuple(v_cache.shape)};"
            " two [S, Hkv, C, D] with the same strides are needed"
        )
    num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    if k_cache.stride()[2:] != (head_dim, 1) or not qkv.is_contiguous():
        raise KernelInputError("qkv and the cache's rows must be dense")
    num_sequences = rows.slots.shape[0]
    heads = qkv.shape[1] // head_dim
    fits = qkv.dim() == 2 and qkv.shape[1] % head_dim == 0 and heads > 2 * num_kv_heads
    if not fits or (qkv.shape[0] % num_sequences if num_sequences else qkv.shape[0]):
        raise KernelInputError(
            f"qkv has shape {tuple(qkv.shape)}; rows of each of {num_sequences} sequences with more"
            f" than {2 * num_kv_heads} heads of {head_dim} are needed"
        )
    if norm is not None and norm.weight.shape != (heads - num_kv_heads, head_dim):
        raise KernelInputError(
            f"norm has shape {tuple(norm.weight.shape)};"
            f" {(heads - num_kv_heads, head_dim)} is needed"
        )
    if rotation is not None:
        shape, size = rotation.cosine.shape, rotation.cosine.shape[-1]
        if len(shape) != 2 or rotation.sine.shape != shape or size % 2 or size > head_dim:
            raise KernelInputError(
                f"cosine has shape {tuple(shape)}, sine {tuple(rotation.sine.shape)}; two [P, R]"
                f" with an even R of {head_dim} at most are needed"
            )
        if rotation.positions.shape != qkv.shape[:1] or rotation.positions.dtype != torch.int64:
            raise KernelInputError(
                f"positions are {rotation.positions.dtype} {tuple(rotation.positions.shape)};"
                f" int64 ({qkv.shape[0]},) is needed"
            )


__all__ = ["HeadNorm", "Rotation", "cost", "norm_rope_cache"]
