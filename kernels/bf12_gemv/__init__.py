"""Lossless 12-bit form of bf16 weights, for products that wait for memory.

A trained tensor uses few exponents: the sixteen commonest high bytes (sign and upper seven bits of
the exponent) cover all but some ten-thousandths of its numbers. Stored are the low byte as it is
and four bits that name the high one; the few other numbers stand in a list (``packed.h`` has the
layout). The idea is that of Turbo-Lossless (github.com/cenconq25/Turbo-Lossless), which codes the
exponent alone and by a range. High bytes need one look-up and no arithmetic to restore, a table has
room for exact zeros (one per cent of SmolLM2's embedding), and no code is spent on escapes: the
list says where they are.

Products with a packed weight go through ``kernels.linear`` and ``kernels.decoder_layers`` and have
the bits of the same product with the bf16 tensor: numbers are restored before they are multiplied.

Bytes: 0.75 of bf16's, and 6 for each escape. Floor of a product with one row: those bytes over the
memory's bandwidth. Decoding costs nine instructions for 32 numbers beside the loads, in registers
for up to six rows (sixteen with AVX-512); for more rows a block of bf16 is decoded into L1.

This is the CPU's form. ``window`` has the one for devices, ``product`` its product (Triton).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from draftsmith.kernels.backend import library
from draftsmith.kernels.bf12_gemv.reference import (
    CODES,
    COLUMNS,
    UNIT_BYTES,
    pack_reference,
    unpack_panels,
)
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.panels import ROWS, PackedWeight

_PIECE = 1024  # rows unpacked at a time: unpacking takes many times their bytes
MAX_ESCAPES = 0.01  # share of a tensor's numbers; above it plain bf16 is as good


class PackedStruct(ctypes.Structure):
    """``bf12::Packed``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("units", "starts", "places", "values")),
        ("highs", ctypes.c_uint8 * CODES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bf12Weight(PackedWeight):
    """A bf16 weight ``[N, K]`` on the CPU, packed."""

    shape: tuple[int, int]
    units: torch.Tensor  # uint8 [panels, ceil(K / 2), 48]
    starts: torch.Tensor  # int64 [panels + 1]
    places: torch.Tensor  # int32 [escapes]
    values: torch.Tensor  # int16 [escapes]: bf16 bits
    highs: torch.Tensor  # uint8 [16], ascending: the high bytes that the codes name

    dtype = torch.bfloat16

    @property
    def num_bytes(self) -> int:
        tensors = (self.units, self.starts, self.places, self.values, self.highs)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def escape_share(self) -> float:
        return len(self.places) / (self.shape[0] * self.shape[1])

    def struct(self) -> PackedStruct:
        """For C++; the tensors must outlive it."""
        tensors = (self.units, self.starts, self.places, self.values)
        highs = (ctypes.c_uint8 * CODES).from_buffer_copy(self.highs.numpy().tobytes())
        return PackedStruct(*(tensor.data_ptr() for tensor in tensors), highs)

    def unpack(self) -> torch.Tensor:
        whole = unpack_panels(
            *(self.units, self.starts, self.places, self.values, self.highs, self.shape[1])
        )
        return whole[: self.shape[0]]

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        starts = range(0, max(1, len(index)), _PIECE)
        return torch.cat([self._piece(index[start : start + _PIECE]) for start in starts])

    def _piece(self, index: torch.Tensor) -> torch.Tensor:
        panels, inverse = torch.unique(index // ROWS, return_inverse=True)
        counts = self.starts.diff()[panels]
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        offsets = torch.arange(int(starts[-1])) - torch.repeat_interleave(starts[:-1], counts)
        escapes = torch.repeat_interleave(self.starts[panels], counts) + offsets
        whole = unpack_panels(
            *(self.units[panels], starts, self.places[escapes], self.values[escapes]),
            *(self.highs, self.shape[1]),
        )
        return whole[inverse * ROWS + index % ROWS]


def high_byte_counts(weight: torch.Tensor) -> torch.Tensor:
    """int64 ``[256]``: how often each high byte occurs in a bf16 tensor on the CPU."""
    _check(weight)
    native = library()
    if native is None:
        highs = (weight.reshape(-1).view(torch.int16) >> 8) & 0xFF
        return torch.bincount(highs.long(), minlength=256)
    counts = torch.empty(256, dtype=torch.int64)
    native.draftsmith_bf12_high_bytes(
        weight.data_ptr(), weight.numel(), counts.data_ptr(), torch.get_num_threads()
    )
    return counts


def commonest(counts: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The sixteen high bytes that most numbers have, ascending (uint8), and the share of numbers
    that they leave out.
    """
    order = torch.argsort(counts, descending=True, stable=True)
    highs = order[:CODES].sort().values
    share = 1.0 - int(counts[highs].sum()) / max(1, int(counts.sum()))
    return highs.to(torch.uint8), share


def pack(weight: torch.Tensor, highs: torch.Tensor) -> Bf12Weight:
    """Pack dense bf16 ``[N, K]`` on the CPU with a code for each of sixteen ``highs`` (uint8,
    ascending). KernelInputError for another type or layout.
    """
    _check(weight)
    num_rows, num_columns = weight.shape
    if not highs.is_cpu or not highs.is_contiguous():
        raise KernelInputError("highs must be dense on the CPU")
    ascending = highs.shape == (CODES,) and bool((highs.int().diff() > 0).all())
    if highs.dtype != torch.uint8 or not ascending:
        raise KernelInputError(
            f"highs are {highs.tolist()} ({highs.dtype}); sixteen ascending ones as uint8 are"
            " needed"
        )
    shape = (num_rows, num_columns)
    native = library()
    if native is None:
        units, starts, places, values = pack_reference(weight, highs)
    else:
        threads = torch.get_num_threads()
        num_panels = -(-num_rows // ROWS)
        escapes = torch.empty(num_panels, dtype=torch.int64)
        native.draftsmith_bf12_escapes(
            *(weight.data_ptr(), num_rows, num_columns, highs.data_ptr()),
            *(escapes.data_ptr(), threads),
        )
        starts = torch.cat((torch.zeros(1, dtype=torch.int64), escapes.cumsum(0)))
        units = torch.empty(num_panels, -(-num_columns // COLUMNS), UNIT_BYTES, dtype=torch.uint8)
        places = torch.empty(int(starts[-1]), dtype=torch.int32)
        values = torch.empty(int(starts[-1]), dtype=torch.int16)
        native.draftsmith_bf12_pack(
            *(weight.data_ptr(), num_rows, num_columns, highs.data_ptr(), units.data_ptr()),
            *(starts.data_ptr(), places.data_ptr(), values.data_ptr(), threads),
        )
    return Bf12Weight(
        shape=shape,
        units=units,
        starts=starts,
        places=places,
        values=values,
        highs=highs,
    )


def _check(weight: torch.Tensor) -> None:
    fits = weight.dtype == torch.bfloat16 and weight.is_cpu and weight.is_contiguous()
    if not fits or weight.dim() != 2:
        raise KernelInputError(
            f"weight is {weight.dtype} {tuple(weight.shape)} with strides {weight.stride()} on"
            f" {weight.device}; dense bf16 [N, K] on the CPU is needed"
        )


__all__ = [
    "MAX_ESCAPES",
    "Bf12Weight",
    "PackedStruct",
    "commonest",
    "high_byte_counts",
    "pack",
]
