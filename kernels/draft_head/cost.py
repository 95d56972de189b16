"""Spans of the Triton form's programs, and the bytes they move."""

from __future__ import annotations

from draftsmith.kernels.cost import NOTHING, Cost

MAX_SPANS = 256  # lists that one program puts together


def span_of(num_outputs: int, block: int) -> int:
    """Outputs a program: whole blocks, so that no head has more than MAX_SPANS spans."""
    blocks = -(-num_outputs // block)
    return block * -(-blocks // MAX_SPANS)


def cost(
    *,
    num_rows: int,
    num_outputs: int,
    depth: int,
    count: int,
    element_size: int,
    x_element_size: int,
    block: int,
    with_log_sum: bool,
) -> Cost:
    """Of one call without a bias, in Triton with ``block`` outputs at a time."""
    if not num_rows or not num_outputs:
        return NOTHING
    span = span_of(num_outputs, block)
    spans, blocks, sixteens = -(-num_outputs // span), -(-num_outputs // block), -(-num_rows // 16)
    lists = 8 * spans * count * num_rows
    sums = 8 * spans * num_rows if with_log_sum else 0
    heads = spans + count - 1
    return Cost(
        bytes_read=num_outputs * depth * element_size * sixteens
        + num_rows * depth * x_element_size * blocks
        + 8 * num_rows * heads
        + sums,
        bytes_written=lists
        + sums
        + num_rows * (12 * count + (4 if with_log_sum else 0))
        + 4 * sixteens,
        launches=1,
    )
