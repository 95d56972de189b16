"""The best tokens of a head, and the log of the sum of all exponentials, without its logits.

Formula: z[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]; with a cap c: z = c * tanh(z / c);
columns[m] = the ``count`` columns of z[m, :] that are largest, largest first, values[m] = z there,
log_sums[m] = ln sum_n exp(z[m, n]).
x [M, K] fp32, weight [N, K] fp32, bf16 or fp16 in any form that ``kernels.linear`` takes, bias [N]
or None; values fp32 and columns int64 [M, count], log_sums fp32 [M]. Of equal logits the lower
column comes first; NaN counts as larger than any number, and makes log_sums NaN: as in
``kernels.top_k`` and torch.

Bytes: those of the weight once, N * K * element size (0.75 of bf16's in 12 bits), 4 M K of x and
12 M count of the result; floor: those over the memory's bandwidth. ``kernels.linear`` and
``kernels.top_k`` write and read another 8 M N for the logits, 12 M N with the log-sum, and the
allocator maps them anew when they are large. ``cpu.cpp`` makes 256 columns of logits at a time in
a scratch of M KiB.

Tolerance: values and columns have the bits that ``kernels.linear`` and ``kernels.top_k`` give (with
a cap, |error| <= 2^-20 * c of those bits capped in float64); log_sums are within 2^-21 * max(1,
|log_sum|) of the float64 sum over these logits. A row's bits are the same in any company and on any
number of threads. The reference rounds as that of ``kernels.linear``, and promises the order of
equal logits for the first column only.

On a GPU ``triton.py`` takes dense heads and up to MAX_COUNT columns: one launch, each program keeps
the best of at most 1/256 of the head, and the last one to arrive puts them together; bytes beside
the weight: 16 count a span and row, and x for each block of outputs (``cost``). Its logits are
within 2^-20 sum_k |x weight| and not rounded to x's type, its log_sums within 2^-18 max(1,
|log_sum|); NaN or infinite where a logit is. Other heads and devices: the reference.
"""

import ctypes
from dataclasses import dataclass

import torch

from draftsmith.kernels.backend import form_for, library
from draftsmith.kernels.draft_head.cost import cost
from draftsmith.kernels.draft_head.reference import draft_head_reference
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear import DTYPE_CODES, check_operands, matrix_struct
from draftsmith.kernels.panels import PackedWeight, Weight

MAX_COUNT = 64  # columns that the Triton form ranks


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The best of each row, largest first; ``log_sums`` None when they were not asked for."""

    values: torch.Tensor  # [M, count] fp32
    columns: torch.Tensor  # [M, count] int64
    log_sums: torch.Tensor | None = None  # [M] fp32


def draft_head(
    x: torch.Tensor,
    weight: Weight,
    count: int,
    *,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    with_log_sum: bool = False,
) -> TopLogits:
    """See the module's docstring. KernelInputError for shapes that do not match, a ``count``
    outside 1..N and a cap that is not above 0.
    """
    num_rows, num_outputs, depth = check_operands(x, weight, bias)
    if not 1 <= count <= num_outputs:
        raise KernelInputError(
            f"count {count} is outside 1..{num_outputs}, the rows of the head; ask for fewer"
        )
    if softcap is not None and not softcap > 0:
        raise KernelInputError(f"softcap is {softcap}; use a positive number, or None for none")
    alike = x.dtype in (torch.float32, weight.dtype)
    ranks = isinstance(weight, torch.Tensor) and alike and count <= MAX_COUNT and x.numel() > 0
    if ranks and form_for("draft_head", x) == "triton":
        from draftsmith.kernels.draft_head.triton import draft_head_triton

        assert isinstance(weight, torch.Tensor)
        rows = x if x.stride(1) == 1 else x.contiguous()
        return TopLogits(*draft_head_triton(rows, weight, count, bias, softcap, with_log_sum))
    native = library() if x.is_cpu and weight.device.type == "cpu" else None
    code = DTYPE_CODES.get(weight.dtype)
    if native is None or code is None or x.dtype != torch.float32:
        whole = weight.unpack() if isinstance(weight, PackedWeight) else weight
        return TopLogits(*draft_head_reference(x, whole, count, bias, softcap, with_log_sum))
    values = torch.empty(num_rows, count, dtype=torch.float32)
    columns = torch.empty(num_rows, count, dtype=torch.int64)
    log_sums = torch.empty(num_rows, dtype=torch.float32) if with_log_sum else None
    if x.stride(1) != 1:
        x = x.contiguous()
    if bias is not None:
        bias = bias.to(torch.float32).contiguous()
    matrix = matrix_struct(weight)
    native.draftsmith_draft_head(
        *(x.data_ptr(), x.stride(0), ctypes.addressof(matrix), code),
        *(None if bias is None else bias.data_ptr(), softcap or 0.0),
        *(num_rows, num_outputs, depth, count, values.data_ptr(), columns.data_ptr()),
        *(None if log_sums is None else log_sums.data_ptr(), torch.get_num_threads()),
    )
    return TopLogits(values, columns, log_sums)


__all__ = ["MAX_COUNT", "TopLogits", "cost", "draft_head"]
