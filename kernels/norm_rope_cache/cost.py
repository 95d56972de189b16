"""Bytes and launches of the pass between product and attention."""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.kernels.cost import NOTHING, Cost


def cost(
    *,
    widths: Sequence[int],
    max_width: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    element_size: int,
    cache_size: int,
    normed: bool,
) -> Cost:
    """Of one call; ``rotary_dim`` 0 without rotation, sizes are bytes an element."""
    programs = len(widths) * max_width * (num_heads + 2 * num_kv_heads)
    if not programs:
        return NOTHING
    real = sum(widths)
    rotated = real * (num_heads + num_kv_heads)
    read = 4 * programs  # the width
    read += real * (num_heads + 2 * num_kv_heads) * head_dim * element_size
    if normed:
        read += rotated * 4 * head_dim
    if rotary_dim:
        partner = rotary_dim * (element_size + (4 if normed else 0))
        read += rotated * (8 + 2 * 4 * rotary_dim + partner)
    read += real * 2 * num_kv_heads * 8  # slot and length
    written = num_heads * element_size + 2 * num_kv_heads * cache_size
    return Cost(bytes_read=read, bytes_written=real * head_dim * written, launches=1)
