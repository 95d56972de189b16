"""Triton's interpreter as cards compute: they round fp32 to bf16 to nearest where it truncates, and
the numbers of a product do not depend on the row of the tile, as those of numpy's may.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch


@contextmanager
def computing_as_cards() -> Iterator[None]:
    """Round to nearest even, and multiply without blocks of rows, inside the block;
    numpy keeps still about overflow, which is meant.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    truncate = InterpreterBuilder.create_fp_trunc

    def round_to_nearest(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar != tl.float32 or target.scalar != tl.bfloat16:
            return truncate(self, source, target)
        wide = torch.from_numpy(np.ascontiguousarray(source.data, np.float32))
        bits = wide.bfloat16().view(torch.int16).numpy().view(np.uint16)
        return TensorHandle(bits.reshape(np.shape(source.data)), tl.bfloat16)

    def dot(self: Any, a: Any, b: Any, start: Any, *_: Any) -> Any:
        wide = start.data.dtype
        left, right = a.data.astype(wide), b.data.astype(wide)
        total = np.einsum("mk,kn->mn", left, right, optimize=False)  # one sum a number, no BLAS
        return TensorHandle(total + start.data, start.dtype.scalar)

    with (
        mock.patch.object(InterpreterBuilder, "create_dot", dot),
        mock.patch.object(InterpreterBuilder, "create_fp_trunc", round_to_nearest),
        np.errstate(over="ignore", invalid="ignore"),
    ):
        yield
