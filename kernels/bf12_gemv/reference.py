"""Plain torch form of the 12-bit packing, and the unpacking that runs everywhere."""

from __future__ import annotations

import torch

from draftsmith.kernels.panels import ROWS, from_panels, places, to_panels

COLUMNS = 2  # of a unit
UNIT_BYTES = 48
CODES = 16  # high bytes that the codes name


def pack_reference(
    weight: torch.Tensor, highs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``units``, ``starts``, ``places``, ``values`` of bf16 ``[N, K]`` given the sixteen ``highs``:
    see ``packed.h``.
    """
    num_rows, depth = weight.shape
    units = -(-depth // COLUMNS)
    code_of = torch.full((256,), CODES, dtype=torch.int32)
    code_of[highs.long()] = torch.arange(CODES, dtype=torch.int32)
    bits = weight.view(torch.int16).to(torch.int32) & 0xFFFF
    code = code_of[bits >> 8]
    escaped = code == CODES

    def in_order(values: torch.Tensor) -> torch.Tensor:  # [panels, columns, 16], columns even
        padded = torch.zeros(num_rows, units * COLUMNS, dtype=values.dtype)
        padded[:, :depth] = values
        return to_panels(padded, places(torch.bfloat16))

    def in_unit(values: torch.Tensor) -> torch.Tensor:  # [panels, units, 32]: see packed.h
        panels = in_order(values)
        halves = panels.view(len(panels), units, COLUMNS, 2, ROWS // 2)
        return halves.transpose(2, 3).reshape(len(panels), units, COLUMNS * ROWS)

    codes = in_unit(torch.where(escaped, 0, code))
    nibbles = codes[..., :ROWS] | (codes[..., ROWS:] << 4)
    packed = torch.cat((in_unit(bits & 0xFF), nibbles), dim=2).to(torch.uint8)
    flat = in_order(escaped).flatten(1)
    starts = torch.zeros(len(flat) + 1, dtype=torch.int64)
    starts[1:] = flat.sum(1).cumsum(0)
    found = flat.nonzero()[:, 1].to(torch.int32)
    return packed.contiguous(), starts, found, in_order(bits).flatten(1)[flat].to(torch.int16)


def unpack_panels(
    units: torch.Tensor,
    starts: torch.Tensor,
    escapes: torch.Tensor,
    values: torch.Tensor,
    highs: torch.Tensor,
    num_columns: int,
) -> torch.Tensor:
    """bf16 ``[P * 16, K]`` of panels ``units [P, units, 48]`` with their own ``starts [P + 1]``,
    ``escapes`` (places in a panel) and ``values``.
    """
    num_panels, num_units = units.shape[0], units.shape[1]
    low = units[..., : COLUMNS * ROWS].to(torch.int32)
    nibbles = units[..., COLUMNS * ROWS :].to(torch.int32)
    code = torch.cat((nibbles & 0xF, nibbles >> 4), dim=2)
    bits = (highs.to(torch.int32)[code] << 8) | low
    halves = bits.view(num_panels, num_units, 2, COLUMNS, ROWS // 2).transpose(2, 3)
    flat = halves.to(torch.int16).reshape(num_panels, num_units * COLUMNS * ROWS)
    panel = torch.repeat_interleave(torch.arange(num_panels), starts.diff())
    first, last = int(starts[0]), int(starts[-1])
    flat[panel, escapes[first:last].long()] = values[first:last]
    columns = flat.view(num_panels, num_units * COLUMNS, ROWS)[:, :num_columns]
    return from_panels(columns, places(torch.bfloat16)).contiguous().view(torch.bfloat16)
