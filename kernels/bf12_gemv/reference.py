"""Plain torch form of the 12-bit packing, and the unpacking that runs everywhere."""

from __future__ import annotations

import torch

ROWS = 4  # rows of a group
STEP = 16  # columns of a unit
UNIT_BYTES = 96
CODES = 16  # high bytes that the codes name


def pack_reference(
    weight: torch.Tensor, highs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``units``, ``starts``, ``places``, ``values`` of bf16 ``[N, K]``, N a multiple of 4, given
    the sixteen ``highs``: see ``packed.h``.
    """
    bits = weight.view(torch.int16).to(torch.int32) & 0xFFFF
    num_groups, steps = weight.shape[0] // ROWS, -(-weight.shape[1] // STEP)
    padded = torch.zeros(weight.shape[0], steps * STEP, dtype=torch.int32)
    padded[:, : weight.shape[1]] = bits
    code_of = torch.full((256,), CODES, dtype=torch.int32)
    code_of[highs.long()] = torch.arange(CODES, dtype=torch.int32)
    code = code_of[padded >> 8]
    real = torch.zeros_like(padded, dtype=torch.bool)
    real[:, : weight.shape[1]] = True
    escaped = real & (code == CODES)
    code = torch.where(real & ~escaped, code, 0)

    def by_unit(values: torch.Tensor) -> torch.Tensor:  # [groups, steps, 4, 16]
        return values.view(num_groups, ROWS, steps, STEP).transpose(1, 2)

    def in_pairs(values: torch.Tensor) -> torch.Tensor:  # [groups, steps, pairs, 32]: see packed.h
        halves = by_unit(values).reshape(num_groups, steps, 2, 2, 2, STEP // 2)
        return halves.transpose(3, 4).reshape(num_groups, steps, 2, 2 * STEP)

    codes = in_pairs(code)
    nibbles = codes[..., :STEP] | (codes[..., STEP:] << 4)
    low = in_pairs(padded & 0xFF)
    units = torch.cat((low.flatten(2), nibbles.flatten(2)), dim=2).to(torch.uint8)
    flat = by_unit(escaped).flatten(1)
    starts = torch.zeros(num_groups + 1, dtype=torch.int64)
    starts[1:] = flat.sum(1).cumsum(0)
    places = flat.nonzero()[:, 1].to(torch.int32)
    values = by_unit(padded).flatten(1)[flat].to(torch.int16)
    return units.contiguous(), starts, places, values


def unpack_groups(
    units: torch.Tensor,
    starts: torch.Tensor,
    places: torch.Tensor,
    values: torch.Tensor,
    highs: torch.Tensor,
    num_columns: int,
) -> torch.Tensor:
    """bf16 ``[G * 4, K]`` of groups ``units [G, steps, 96]`` with their own ``starts [G + 1]``."""
    num_groups, steps = units.shape[0], units.shape[1]
    low = units[..., : ROWS * STEP].to(torch.int32).view(num_groups, steps, 2, 2 * STEP)
    nibbles = units[..., ROWS * STEP :].to(torch.int32).view(num_groups, steps, 2, STEP)
    code = torch.cat((nibbles & 0xF, nibbles >> 4), dim=3)
    bits = (highs.to(torch.int32)[code] << 8) | low
    bits = bits.view(num_groups, steps, 2, 2, 2, STEP // 2).transpose(3, 4)
    flat = bits.to(torch.int16).reshape(num_groups, steps * ROWS * STEP)
    group = torch.repeat_interleave(torch.arange(num_groups), starts.diff())
    first, last = int(starts[0]), int(starts[-1])
    flat[group, places[first:last].long()] = values[first:last]
    rows = flat.view(num_groups, steps, ROWS, STEP).transpose(1, 2)
    return (
        rows.reshape(num_groups * ROWS, steps * STEP)[:, :num_columns]
        .contiguous()
        .view(torch.bfloat16)
    )
