"""Tiles of the compaction's programs, and the bytes they move."""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.kernels.cost import NOTHING, Cost

MAX_TILE = 8192  # numbers of one cache that a program holds: 64 registers a thread for 4 warps


def padded_rows(max_rows: int) -> int:
    return 1 << max(0, max_rows - 1).bit_length()


def tile_columns(max_rows: int, head_dim: int) -> int:
    """Columns of a head that one program takes."""
    whole = 1 << (head_dim - 1).bit_length()
    return max(1, min(whole, MAX_TILE // padded_rows(max_rows)))


def cost(
    *,
    counts: Sequence[int],
    max_rows: int,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    element_size: int,
) -> Cost:
    """Of one call for sequences that keep ``counts`` rows each, in a list of ``max_rows``."""
    if not counts or not max_rows:
        return NOTHING
    heads = num_layers * num_kv_heads
    programs = heads * -(-head_dim // tile_columns(max_rows, head_dim))
    moved = 2 * heads * sum(counts) * head_dim * element_size
    indices = 4 * programs * (3 * len(counts) + sum(counts))
    return Cost(bytes_read=moved + indices, bytes_written=moved, launches=1)
