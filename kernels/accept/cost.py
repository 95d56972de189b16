"""What one call of the verification moves."""

from __future__ import annotations

from collections.abc import Sequence

from draftsmith.kernels.cost import NOTHING, Cost

_PROGRAM = 4 + 8 + 4 + 8 + 8  # sequence, its two starts, temperature, seed and position


def cost(
    *,
    widths: Sequence[int],
    vocab_size: int,
    split: int,
    element_size: int,
    lengths: Sequence[int],
) -> Cost:
    """Of the coupled rule over sequences of ``widths`` rows (0: none) of which ``lengths`` drafts
    are accepted. ``split``: tokens a program.
    """
    if not widths:
        return NOTHING
    rows, splits = sum(widths), -(-vocab_size // split)
    running = [pair for pair in zip(widths, lengths, strict=True) if pair[0]]
    trees = sum(8 * (width - 1) for width, _ in running)
    visited = sum(length + 1 for _, length in running)
    path_width = max(1, *widths) - 1
    return Cost(
        bytes_read=rows * vocab_size * element_size
        + rows * splits * (_PROGRAM + 4)
        + 8 * len(widths)
        + trees
        + 8 * splits * visited,
        bytes_written=8 * rows * splits + 4 * len(running) + len(widths) * (8 + 4 * path_width),
        launches=1,
    )


def sampled_cost(
    *,
    widths: Sequence[int],
    vocab_size: int,
    split: int,
    element_size: int,
    block: bool,
    one_hot: bool = False,
) -> Cost:
    """Of the sampled rules over chains of ``widths`` rows (2 or more), but for the split in which
    each bonus is found: it is read again up to there, at most ``split`` numbers of p and of q.
    """
    if not widths:
        return NOTHING
    splits, of_q = -(-vocab_size // split), 0 if one_hot else element_size
    path_width = max(widths) - 1
    read = 0
    for width in widths:
        drafts = width - 1
        likelihoods = drafts * (4 + element_size + of_q) + width * element_size
        programs = width * splits * (_PROGRAM + likelihoods) + 4 * drafts * splits
        last = likelihoods + 8 * splits * (2 + (drafts if block else 0))
        rows = vocab_size * (width * element_size + drafts * of_q)
        read += 8 + programs + rows + last
    written = 16 * sum(widths) * splits + len(widths) * (4 + 8 + 4 * path_width)
    return Cost(bytes_read=read, bytes_written=written, launches=1)
