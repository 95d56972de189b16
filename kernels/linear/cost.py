"""Bytes and launches of the Triton form of the product."""

from __future__ import annotations

from draftsmith.kernels.configurations import DEFAULT, configuration
from draftsmith.kernels.cost import NOTHING, Cost


def cost(
    *,
    num_rows: int,
    num_outputs: int,
    depth: int,
    x_size: int,
    weight_size: int,
    bias_size: int = 0,
    architecture: str = DEFAULT,
) -> Cost:
    """Of one call; sizes are bytes an element. Up to ``BLOCK_M`` rows the weight is read once."""
    blocks = configuration("linear", architecture).blocks
    row_blocks, column_blocks = (
        -(-num_rows // blocks["BLOCK_M"]),
        -(-num_outputs // blocks["BLOCK_N"]),
    )
    if not row_blocks or not column_blocks:
        return NOTHING
    weight = row_blocks * num_outputs * (depth * weight_size + bias_size)
    return Cost(
        bytes_read=weight + column_blocks * num_rows * depth * x_size,
        bytes_written=num_rows * num_outputs * x_size,
        launches=1,
    )
