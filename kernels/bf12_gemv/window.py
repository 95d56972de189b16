"""The 12-bit form for devices: exponents by a window, escapes found by their own low byte.

A number is (sign, exponent, mantissa) of 1, 8 and 7 bits. ``low`` [N, Kp] holds sign and mantissa
as a byte, ``codes`` [N, Kp / 2] four bits of exponent for two columns, the even one below. Code 0
is exponent 0 (signed zeros and subnormals), code g in 1..14 exponent base + g, 15 an escape: its
low byte counts the escapes before it among its row's 256 columns of one group, ``starts`` [N,
groups] says where a group's escapes begin in ``values``, which hold their bits. So each number is
restored where it stands, by one look-up that only escapes need, and no list of places is kept.

Window and escapes follow algorithms.md F6 and Turbo-Lossless (github.com/cenconq25/Turbo-Lossless);
the addressing of escapes is ours. Why not the units of ``packed.h``: their sixteen-entry table is
one instruction on a CPU, several on a GPU, where a window needs an add.

Bytes: 1.5 N Kp (Kp is K rounded up to 32), 4 N ceil(K / 256), and 2 for each escape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.panels import PackedWeight

GROUP = 256  # columns whose escapes one byte counts
WINDOW = 14  # exponents that the codes 1 .. 14 name
ESCAPE = 15
_ALIGN = 32  # columns: 16 bytes of codes
_PIECE = 2048  # rows packed or unpacked at a time: either takes many times their bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWeight(PackedWeight):
    """A bf16 weight ``[N, K]``, packed, on any device."""

    shape: tuple[int, int]
    base: int
    low: torch.Tensor  # uint8 [N, Kp]
    codes: torch.Tensor  # uint8 [N, Kp / 2]
    starts: torch.Tensor  # int32 [N, groups]
    values: torch.Tensor  # int16 [escapes]: bf16 bits

    dtype = torch.bfloat16

    @property
    def device(self) -> torch.device:
        return self.low.device

    @property
    def num_bytes(self) -> int:
        tensors = (self.low, self.codes, self.starts, self.values)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def escape_share(self) -> float:
        return len(self.values) / (self.shape[0] * self.shape[1])

    def unpack(self) -> torch.Tensor:
        return self._rows(torch.arange(self.shape[0], device=self.device))

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        pieces = torch.split(index, _PIECE) if len(index) else (index,)
        return torch.cat([self._piece(piece) for piece in pieces])

    def _piece(self, index: torch.Tensor) -> torch.Tensor:
        depth = self.shape[1]
        low = self.low[index].int()
        pairs = self.codes[index].int()
        code = torch.stack((pairs & 0xF, pairs >> 4), dim=2).flatten(1)
        exponent = torch.where(code == 0, 0, code + self.base)
        bits = ((low & 0x80) << 8) | (exponent << 7) | (low & 0x7F)
        rows, columns = (code == ESCAPE).nonzero(as_tuple=True)
        place = self.starts[index[rows], columns // GROUP] + low[rows, columns]
        bits[rows, columns] = self.values[place.long()].int()
        return bits[:, :depth].to(torch.int16).contiguous().view(torch.bfloat16)


def exponent_counts(weight: torch.Tensor) -> torch.Tensor:
    """int64 ``[256]``: how often each exponent occurs in a dense bf16 ``[N, K]``."""
    _check(weight)
    counts = torch.zeros(256, dtype=torch.int64, device=weight.device)
    for piece in torch.split(weight, _PIECE):
        counts += torch.bincount(_exponents(piece).flatten(), minlength=256)
    return counts


def best_window(counts: torch.Tensor) -> tuple[int, float]:
    """(base, share of the numbers left out) of the window that leaves out the fewest."""
    ends = torch.cat((counts.new_zeros(1), counts[1:].cumsum(0)))  # of exponents 1 .. e
    covered = ends[WINDOW:] - ends[: 256 - WINDOW]  # base .. base + 14, for base 0 .. 241
    base = int(covered.argmax())
    kept = int(covered[base]) + int(counts[0])
    return base, 1.0 - kept / max(1, int(counts.sum()))


def pack_window(weight: torch.Tensor, base: int) -> WindowWeight:
    """Pack dense bf16 ``[N, K]``; KernelInputError for another type, layout or base."""
    _check(weight)
    if not 0 <= base <= 255 - WINDOW:
        raise KernelInputError(f"base is {base}; 0 to {255 - WINDOW} are exponents of a window")
    num_rows, depth = weight.shape
    width = -(-depth // _ALIGN) * _ALIGN
    groups = -(-depth // GROUP)
    device = weight.device
    low = torch.zeros(num_rows, width, dtype=torch.uint8, device=device)
    codes = torch.zeros(num_rows, width // 2, dtype=torch.uint8, device=device)
    per_group = torch.zeros(num_rows, groups, dtype=torch.int64, device=device)
    values = [torch.empty(0, dtype=torch.int16, device=device)]
    for first in range(0, num_rows, _PIECE):
        rows = slice(first, first + _PIECE)
        piece = _pack_piece(weight[rows], base, width, groups)
        low[rows], codes[rows], per_group[rows] = piece.low, piece.codes, piece.per_group
        values.append(piece.values)
    ends = per_group.flatten().cumsum(0)
    if len(ends) and int(ends[-1]) >= 2**31:
        raise KernelInputError(f"{int(ends[-1])} escapes; below 2^31 are needed, keep it in bf16")
    return WindowWeight(
        shape=(num_rows, depth),
        base=base,
        low=low,
        codes=codes,
        starts=(ends - per_group.flatten()).view(num_rows, groups).to(torch.int32),
        values=torch.cat(values),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    low: torch.Tensor
    codes: torch.Tensor
    per_group: torch.Tensor  # int64: escapes of each group
    values: torch.Tensor


def _pack_piece(weight: torch.Tensor, base: int, width: int, groups: int) -> _Piece:
    num_rows, depth = weight.shape
    bits = torch.zeros(num_rows, groups * GROUP, dtype=torch.int32, device=weight.device)
    bits[:, :depth] = weight.view(torch.int16).int() & 0xFFFF
    exponent = (bits >> 7) & 0xFF
    code = exponent - base
    inside = (code >= 1) & (code <= WINDOW) & (exponent != 0)
    code = torch.where(exponent == 0, 0, torch.where(inside, code, ESCAPE))
    escaped = code == ESCAPE
    by_group = escaped.view(num_rows, groups, GROUP)
    before = (by_group.cumsum(2) - by_group.long()).view(num_rows, -1)
    low = torch.where(escaped, before, ((bits >> 8) & 0x80) | (bits & 0x7F))[:, :width]
    code = code[:, :width]
    return _Piece(
        low.to(torch.uint8),
        (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.uint8),
        by_group.sum(2),
        bits[escaped].to(torch.int16),
    )


def _exponents(weight: torch.Tensor) -> torch.Tensor:
    return (weight.view(torch.int16).int() >> 7) & 0xFF


def _check(weight: torch.Tensor) -> None:
    if weight.dtype != torch.bfloat16 or weight.dim() != 2 or not weight.is_contiguous():
        raise KernelInputError(
            f"weight is {weight.dtype} {tuple(weight.shape)} with strides {weight.stride()}; dense"
            " bf16 [N, K] is needed"
        )
