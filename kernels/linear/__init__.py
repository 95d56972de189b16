"""Product of a few rows with a large weight, row-stable on the CPU.

Formula: out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]
x [M, K] fp32, weight [N, K] fp32, bf16 or fp16, in panels (``kernels.panels``), packed to 12 bits
(``kernels.bf12_gemv``) or dense; bias [N] or None; out [M, N] in x's dtype.

Why not torch: its bf16 product on a CPU without AMX or AVX-512 costs M times one row, and its fp32
product picks its blocking, hence its rounding, by M. ``cpu.cpp`` reads the weights once for all
rows (N * K * element size bytes), keeps x in fp32, and sums each (m, n) in one fixed order: row m's
bits are the same alone, among 64 rows, on any number of threads and with any form of the weight. A
dense weight is brought into panels anew at each call, a block at a time: slower than one that is
held in them.

Tolerance: against the float64 product of the same numbers, |error| <= 2^-20 * sum_k |x * weight|
for ``cpu.cpp``; the reference also rounds x and the result to the weight's type. On CUDA and ROCm
``triton.py`` runs.
"""

import ctypes

import torch

from draftsmith.kernels.backend import form_for, library
from draftsmith.kernels.bf12_gemv import Bf12Weight, PackedStruct
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear.cost import cost
from draftsmith.kernels.linear.reference import linear_reference
from draftsmith.kernels.panels import PackedWeight, PanelWeight, Weight

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class MatrixStruct(ctypes.Structure):
    """``product::Matrix``."""

    _fields_ = (("rows", ctypes.c_void_p), ("panels", ctypes.c_void_p), ("packed", PackedStruct))


def matrix_struct(weight: Weight) -> MatrixStruct:
    """A weight as C++ takes it; the weight must outlive it."""
    if isinstance(weight, Bf12Weight):
        return MatrixStruct(None, None, weight.struct())
    if isinstance(weight, PanelWeight):
        return MatrixStruct(None, weight.panels.data_ptr(), PackedStruct())
    assert isinstance(weight, torch.Tensor)
    return MatrixStruct(weight.data_ptr(), None, PackedStruct())


def check_operands(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None
) -> tuple[int, int, int]:
    """Rows, outputs and depth of the product (M, N, K); KernelInputError for another shape or a
    weight that is not dense.
    """
    num_rows, depth = _shape(x, "x")
    num_outputs, weight_depth = _shape(weight, "weight")
    if depth != weight_depth:
        raise KernelInputError(
            f"x has {depth} columns but weight has {weight_depth}; they must be equal"
        )
    if bias is not None and bias.shape != (num_outputs,):
        raise KernelInputError(f"bias has shape {tuple(bias.shape)}; weight needs ({num_outputs},)")
    if isinstance(weight, torch.Tensor) and not weight.is_contiguous():
        raise KernelInputError(
            f"weight has strides {weight.stride()}; it must be contiguous:"
            " copying it would cost each call"
        )
    return num_rows, num_outputs, depth


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """See the module's docstring. Raises ``KernelInputError`` on shapes that do not match."""
    num_rows, num_outputs, depth = check_operands(x, weight, bias)
    if form_for("linear", x) == "triton":
        return _triton(x, weight, bias)
    native = library() if x.is_cpu and weight.device.type == "cpu" else None
    code = DTYPE_CODES.get(weight.dtype)
    if native is None or code is None or x.dtype != torch.float32:
        whole = weight.unpack() if isinstance(weight, PackedWeight) else weight
        return linear_reference(x, whole, bias)
    out = torch.empty(num_rows, num_outputs, dtype=torch.float32)
    if out.numel() == 0:
        return out
    if x.stride(1) != 1:
        x = x.contiguous()
    if bias is not None:
        bias = bias.to(torch.float32).contiguous()
    matrix = matrix_struct(weight)
    native.draftsmith_linear(
        *(x.data_ptr(), x.stride(0), ctypes.addressof(matrix), code),
        *(None if bias is None else bias.data_ptr(), out.data_ptr()),
        *(num_rows, num_outputs, depth, torch.get_num_threads()),
    )
    return out


def _triton(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    from draftsmith.kernels.linear.triton import linear_triton

    dense = weight.unpack() if isinstance(weight, PackedWeight) else weight
    if x.dtype != torch.float32 and x.dtype != dense.dtype:
        raise KernelInputError(
            f"x is {x.dtype} and weight {dense.dtype}; they must be alike, or x fp32"
        )
    return linear_triton(x if x.stride(1) == 1 else x.contiguous(), dense, bias)


def _shape(tensor: Weight, name: str) -> tuple[int, int]:
    if len(tensor.shape) != 2:
        raise KernelInputError(f"{name} has shape {tuple(tensor.shape)}, two dimensions are needed")
    return tensor.shape[0], tensor.shape[1]


__all__ = ["DTYPE_CODES", "MatrixStruct", "check_operands", "cost", "linear", "matrix_struct"]
