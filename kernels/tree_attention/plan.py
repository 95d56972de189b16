"""How attention's work is cut into launches and programs, and the bytes that these move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftsmith.kernels.configurations import DEFAULT, configuration
from draftsmith.kernels.cost import NOTHING, Cost

WORKSPACE_BYTES = 256 * 2**20  # of partial sums; more rows than fit take more launches
SMALLEST_TILE = 16  # the fewest rows of a tensor core's product


def tile_pairs(group: int) -> int:
    """Pairs of a query row and a head in a tile."""
    return max(SMALLEST_TILE, 1 << (group - 1).bit_length())


def tile_rows(group: int) -> int:
    """Query rows in a tile."""
    return tile_pairs(group) // group


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``num_splits`` places for partial sums a row and head; ``num_shared`` splits that tiles of
    rows may share; ``chunk`` query rows of each sequence a launch.
    """

    num_splits: int
    num_shared: int
    chunk: int


def plan(
    *,
    num_sequences: int,
    width: int,
    num_heads: int,
    head_dim: int,
    offset: int,
    max_length: int,
    is_tree: bool,
    split: int,
) -> Plan:
    num_splits = -(-(max_length + offset + width) // split)
    row_bytes = 4 * max(1, num_sequences) * num_heads * max(1, num_splits) * (head_dim + 2)
    return Plan(
        num_splits=num_splits,
        num_shared=max_length // split if is_tree else num_splits,
        chunk=max(1, min(width, WORKSPACE_BYTES // row_bytes)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What ``cost`` needs to know besides the rows; sizes are bytes an element."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_size: int
    cache_size: int
    window: int | None = None


def cost(
    shape: AttentionShape,
    *,
    lengths: Sequence[int],
    widths: Sequence[int],
    max_width: int,
    offset: int,
    counts: Sequence[Sequence[int]] | None,
    max_length: int | None = None,
    architecture: str = DEFAULT,
) -> Cost:
    """Of one call. ``counts[b][i]`` draft rows are seen by row i of sequence b; None: chains."""
    blocks = configuration("tree_attention", architecture).blocks
    layout = plan(
        num_sequences=len(lengths),
        width=max_width,
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        offset=offset,
        max_length=max(lengths, default=0) if max_length is None else max_length,
        is_tree=counts is not None,
        split=blocks["SPLIT"],
    )
    total = NOTHING
    for first_row in range(0, max_width if lengths else 0, layout.chunk):
        num_rows = min(layout.chunk, max_width - first_row)
        launch = _Launch(shape, layout, blocks["SPLIT"], blocks["BLOCK_N"], first_row, num_rows)
        for b, (length, width) in enumerate(zip(lengths, widths, strict=True)):
            seen = None if counts is None else counts[b]
            total += launch.of_sequence(length, width, offset, seen)
        total += Cost(bytes_read=0, bytes_written=0, launches=2)
    return total


@dataclass(frozen=True, slots=True)
class _Launch:
    shape: AttentionShape
    layout: Plan
    split: int
    block: int
    first_row: int
    num_rows: int

    def of_sequence(
        self, length: int, width: int, offset: int, counts: Sequence[int] | None
    ) -> Cost:
        shape, group = self.shape, self.shape.num_heads // self.shape.num_kv_heads
        rows = range(self.first_row, min(self.first_row + self.num_rows, width))
        totals = {i: length + (offset + i + 1 if counts is None else counts[i]) for i in rows}
        num_tiles = -(-self.num_rows // tile_rows(group))
        programs = num_tiles * self.layout.num_shared + (self.num_rows if counts is not None else 0)
        read, written = shape.num_kv_heads * programs * 8, 0  # width and length
        for tile in self._tiles(rows, group):
            ends = [totals[i] for i in tile]
            count_bytes = 0 if counts is None else 4 * len(tile) * group
            read += shape.num_kv_heads * count_bytes * self.layout.num_shared
            last_split = self.layout.num_shared if counts is None else length // self.split
            for split in range(last_split):
                keys = self._keys(ends, split, max(ends))
                if keys:
                    read += shape.num_kv_heads * self._program(len(tile) * group, keys)
                    written += shape.num_kv_heads * len(tile) * group * self._part_bytes
        for end in totals.values() if counts is not None else ():
            read += shape.num_kv_heads * 4 * group
            first = max(length // self.split, self._first(end) // self.split)
            splits = range(first, -(-end // self.split))
            if splits:
                keys = sum(self._keys([end], split, end) for split in splits)
                drafts = sum(self._keys([end], split, end, length) for split in splits)
                read += shape.num_kv_heads * (self._program(group, keys) + 4 * drafts)
                written += shape.num_kv_heads * group * self._part_bytes * len(splits)
        reduced = sum(
            -(-end // self.split) - self._first(end) // self.split for end in totals.values()
        )
        read += shape.num_heads * (4 * self.num_rows + self._part_bytes * reduced)
        read += shape.num_heads * len(rows) * (4 if counts is None else 8)
        written += shape.num_heads * self.num_rows * shape.head_dim * shape.q_size
        return Cost(bytes_read=read, bytes_written=written, launches=0)

    @property
    def _part_bytes(self) -> int:
        return 4 * (self.shape.head_dim + 2)

    def _program(self, num_pairs: int, keys: int) -> int:
        """Bytes read of q, the slot's number, keys and values."""
        shape = self.shape
        return 4 + shape.head_dim * (num_pairs * shape.q_size + 2 * keys * shape.cache_size)

    def _first(self, end: int) -> int:
        window = self.shape.window
        return 0 if window is None else max(0, end - window)

    def _keys(self, ends: Sequence[int], split: int, end: int, least: int = 0) -> int:
        """Positions from ``least`` on that a tile of rows loads of a split."""
        start, stop = split * self.split, min(end, (split + 1) * self.split)
        first = min(self._first(each) for each in ends)
        if first >= stop:
            return 0
        start += max(0, first - start) // self.block * self.block
        return max(0, stop - max(start, least))

    def _tiles(self, rows: range, group: int) -> Iterator[range]:
        size = tile_rows(group)
        for first in range(self.first_row, rows.stop, size):
            yield range(first, min(first + size, rows.stop))
