"""Attention of new rows over their slot's committed rows and the draft rows they see, row-stable.

q [B, W, Hq, D] fp32; k_cache and v_cache [S, Hkv, C, D] fp32, bf16 or fp16: one layer of the
engine's cache, rows dense. Query row i of sequence b sees cache rows 0 .. lengths[b]-1 of slots[b]
and the draft rows lengths[b] + j with visible[b, i, j] (None: j <= offset + i). Keys have logical
positions: their cache row in the prefix, then lengths[b] + r for the r-th visible draft row. The
query's own position is that of its last key; ``window`` keeps the last ``window`` positions, its
own included. Rows i >= widths[b] are padding: no work, zeros out, never seen by others. A row that
sees nothing gives zeros.

Formula: s = scale * (q . k); softcap: s = softcap * tanh(s / softcap); out = softmax(s) @ v, in
fp32.

Why not torch: its attention needs a dense mask and a cast copy of the cache, and picks its
blocking, hence its rounding, by shape. ``cpu.cpp`` reads only the visible rows, in the cache's
type, once for up to 3 heads, and reduces in logical order: a row's bits depend on neither W, B, nor
threads, nor on which cache row holds an ancestor. ``triton.py`` keeps the same promise on a GPU.

Tolerance against the reference: 1e-5 absolute for inputs of unit scale in fp32.
"""

import ctypes
from collections.abc import Sequence

import torch

from draftsmith.kernels.backend import form_for, library
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.ragged import RaggedRows, ragged_rows
from draftsmith.kernels.tree_attention.plan import AttentionShape, cost
from draftsmith.kernels.tree_attention.reference import tree_attention_reference

_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def tree_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    slots: Sequence[int],
    lengths: Sequence[int],
    widths: Sequence[int],
    offset: int,
    visible: torch.Tensor | None,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See the module's docstring. ``KernelInputError`` where arguments do not fit each other."""
    _check_tensors(q, k_cache, v_cache, visible, offset)
    _check_rows(q, k_cache, slots, lengths, widths, offset)
    _check_options(window, softcap)
    if form_for("tree_attention", q) == "triton":
        rows = ragged_rows(
            *(slots, lengths, widths), offset=offset, visible=visible, device=q.device
        )
        return _triton(q, k_cache, v_cache, rows, scale, window, softcap)
    native = library() if q.is_cpu and k_cache.is_cpu else None
    code = _DTYPE_CODES.get(k_cache.dtype)
    if native is None or code is None or q.dtype != torch.float32:
        return tree_attention_reference(
            *(q, k_cache, v_cache),
            slots=slots,
            lengths=lengths,
            widths=widths,
            offset=offset,
            visible=visible,
            scale=scale,
            window=window,
            softcap=softcap,
        )
    num_batch, num_rows, num_heads, head_dim = q.shape
    q = q.contiguous()
    mask = None if visible is None else visible.contiguous()
    out = torch.empty_like(q)
    integers = ctypes.c_int64 * num_batch
    native.draftsmith_tree_attention(
        *(q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), code),
        *(k_cache.stride(0), k_cache.stride(1)),
        *(integers(*slots), integers(*lengths), integers(*widths)),
        *(None if mask is None else mask.data_ptr(), out.data_ptr()),
        *(num_batch, num_rows, num_heads, k_cache.shape[1], head_dim, offset),
        *(window or 0, scale, softcap or 0.0, torch.get_num_threads()),
    )
    return out


def ragged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: RaggedRows,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """``tree_attention`` over rows whose numbers lie on the device already, where their values are
    not checked. Triton only.
    """
    _check_tensors(q, k_cache, v_cache, None, rows.offset)
    _check_options(window, softcap)
    paths, wanted = rows.paths, (q.shape[0], q.shape[1], rows.offset + q.shape[1])
    if paths is not None and tuple(paths.rows.shape) != wanted:
        raise KernelInputError(f"paths have shape {tuple(paths.rows.shape)}; {wanted} is needed")
    return _triton(q, k_cache, v_cache, rows, scale, window, softcap)


def _triton(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: RaggedRows,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    from draftsmith.kernels.tree_attention.triton import tree_attention_triton

    if q.dtype not in (torch.float32, k_cache.dtype):
        raise KernelInputError(
            f"q is {q.dtype} and the cache {k_cache.dtype}; they must be alike, or q fp32"
        )
    return tree_attention_triton(
        *(q.contiguous(), k_cache, v_cache, rows), scale=scale, window=window, softcap=softcap
    )


def _check_options(window: int | None, softcap: float | None) -> None:
    if window is not None and window < 1:
        raise KernelInputError(f"window is {window}; use 1 or more, or None for no window")
    if softcap is not None and softcap <= 0:
        raise KernelInputError(f"softcap is {softcap}; use a positive number, or None for none")


def _check_tensors(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    visible: torch.Tensor | None,
    offset: int,
) -> None:
    if q.dim() != 4 or k_cache.dim() != 4:
        raise KernelInputError(
            f"q has shape {tuple(q.shape)} and k_cache {tuple(k_cache.shape)};"
            " [B, W, Hq, D] and [S, Hkv, C, D] are needed"
        )
    same = k_cache.shape == v_cache.shape and k_cache.stride() == v_cache.stride()
    if not same or k_cache.dtype != v_cache.dtype:
        raise KernelInputError("k_cache and v_cache differ in shape, strides or dtype")
    head_dim = k_cache.shape[3]
    if k_cache.stride()[2:] != (head_dim, 1):
        raise KernelInputError(
            f"cache strides are {k_cache.stride()}; a head's rows must be dense: ({head_dim}, 1)"
        )
    if q.shape[3] != head_dim or q.shape[2] % k_cache.shape[1] != 0:
        raise KernelInputError(
            f"q has {q.shape[2]} heads of {q.shape[3]}, the cache {k_cache.shape[1]} of {head_dim}:"
            " heads must be a multiple and sizes equal"
        )
    wanted = (q.shape[0], q.shape[1], offset + q.shape[1])
    if visible is not None and (visible.dtype != torch.bool or tuple(visible.shape) != wanted):
        raise KernelInputError(
            f"visible is {visible.dtype} {tuple(visible.shape)}; torch.bool {wanted} is needed"
        )


def _check_rows(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    slots: Sequence[int],
    lengths: Sequence[int],
    widths: Sequence[int],
    offset: int,
) -> None:
    num_batch, num_rows = q.shape[:2]
    num_slots, capacity = k_cache.shape[0], k_cache.shape[2]
    if not len(slots) == len(lengths) == len(widths) == num_batch:
        raise KernelInputError(
            f"{len(slots)} slots, {len(lengths)} lengths and {len(widths)} widths"
            f" for a batch of {num_batch}"
        )
    if offset < 0:
        raise KernelInputError(f"offset is {offset}; it counts draft rows and cannot be negative")
    for slot, length, width in zip(slots, lengths, widths, strict=True):
        if not 0 <= slot < num_slots:
            raise KernelInputError(f"slot {slot} is outside the cache's {num_slots} slots")
        if not 0 <= width <= num_rows:
            raise KernelInputError(f"width {width} is outside 0 .. {num_rows}")
        if length < 0 or length + offset + width > capacity:
            raise KernelInputError(
                f"slot {slot}: {length} committed and {offset + width} draft rows"
                f" exceed the capacity of {capacity}"
            )


__all__ = ["AttentionShape", "cost", "ragged_attention", "tree_attention"]
