"""The largest numbers of each row: arg-max, and the best tokens of a row of logits.

Formula: columns[r] = the ``count`` columns of values[r, :] that are largest, largest first.
values [N, V] fp32; columns int64 [N, count]. Of equal numbers the lower column comes first; NaN
counts as larger than any number, as in torch.

Bytes: 4 N V, read once; floor: those over the memory's bandwidth (of a cache that holds them).
torch's ``topk`` sorts a copy of the row in part. The reference, which other devices run, promises
the order of equal numbers for the first column only.
"""

import torch

from draftsmith.kernels.backend import library
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.top_k.reference import top_k_reference


def top_k(values: torch.Tensor, count: int) -> torch.Tensor:
    """See the module's docstring. KernelInputError for another shape or type, and for a ``count``
    outside 1..V.
    """
    if values.dim() != 2 or values.dtype != torch.float32:
        raise KernelInputError(
            f"values are {values.dtype} {tuple(values.shape)}; fp32 [N, V] is needed"
        )
    num_rows, size = values.shape
    if not 1 <= count <= size:
        raise KernelInputError(f"count {count} is outside 1..{size}, the columns of values")
    native = library() if values.is_cpu else None
    if native is None:
        return top_k_reference(values, count)
    if values.stride(1) != 1:
        values = values.contiguous()
    columns = torch.empty(num_rows, count, dtype=torch.int64)
    native.draftsmith_top_k(
        *(values.data_ptr(), values.stride(0), num_rows, size, count),
        *(columns.data_ptr(), torch.get_num_threads()),
    )
    return columns


__all__ = ["top_k"]
