"""Bytes that Triton kernels load and store, counted in the interpreter, mask by mask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from draftsmith.kernels.cost import Cost, LaunchCount, count_launches


@dataclass
class Traffic:
    launches: LaunchCount
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def cost(self) -> Cost:
        return Cost(
            bytes_read=self.bytes_read,
            bytes_written=self.bytes_written,
            launches=self.launches.total,
        )


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """What the kernels run inside the block move. Atomic operations are not counted."""
    from triton.runtime.interpreter import InterpreterBuilder

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def element_bytes(pointers: Any) -> int:
        return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)

    with count_launches() as launches:
        traffic = Traffic(launches)

        def counted_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            traffic.bytes_read += int(mask.data.sum()) * element_bytes(pointers)
            return load(self, pointers, mask, *rest)

        def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            traffic.bytes_written += int(mask.data.sum()) * element_bytes(pointers)
            return store(self, pointers, value, mask, *rest)

        with (
            mock.patch.object(InterpreterBuilder, "create_masked_load", counted_load),
            mock.patch.object(InterpreterBuilder, "create_masked_store", counted_store),
        ):
            yield traffic
