"""Rotary position tables: cosines and signed sines, computed once and grown with the cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftsmith.engine.model.rope_config import RopeConfig


class RotaryTables:
    """For each rope ``cos`` and ``sin`` of shape ``[positions, 1, rotary_dim]``, fp32.

    The sine of the first half is negated, so that a rotation is ``x * cos + swap(x) * sin`` with
    ``swap`` exchanging the halves: the same products as transformers' ``rotate_half``, with fewer
    operations.
    """

    def __init__(self, ropes: Sequence[RopeConfig], device: torch.device) -> None:
        self._ropes = tuple(ropes)
        self._device = device
        self._rows = 0
        self._tables: list[tuple[torch.Tensor, torch.Tensor]] = []

    def gather(
        self, positions: torch.Tensor, limit: int
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Rows for ``positions`` ``[N]``, all under ``limit`` (host-side, so that no device is
        asked).
        """
        return [
            (cos.index_select(0, positions), sin.index_select(0, positions))
            for cos, sin in self.tables(limit)
        ]

    def tables(self, limit: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The tables themselves, with rows for every position under ``limit`` at least."""
        if limit > self._rows:
            self._build(limit)
        return self._tables

    def _build(self, rows: int) -> None:
        steps = torch.arange(rows, dtype=torch.float32, device=self._device)[:, None]
        self._tables = []
        for rope in self._ropes:
            inv_freq = torch.tensor(rope.inv_freq, dtype=torch.float32, device=self._device)
            angles = steps * inv_freq
            cos, sin = angles.cos() * rope.scaling, angles.sin() * rope.scaling
            self._tables.append(
                (
                    torch.cat((cos, cos), dim=-1)[:, None],
                    torch.cat((-sin, sin), dim=-1)[:, None],
                )
            )
        self._rows = rows


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first ``rotary_dim`` dimensions of ``x`` ``[N, heads, D]`` (any remainder passes
    through).
    """
    dim = cos.shape[-1]
    if dim == x.shape[-1]:
        return _rotate_all(x, cos, sin)
    return torch.cat((_rotate_all(x[..., :dim], cos, sin), x[..., dim:]), dim=-1)


def _rotate_all(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    rows, heads, dim = x.shape
    swapped = x.view(rows, heads, 2, dim // 2).flip(-2).view(rows, heads, dim)
    rotated = torch.mul(x, cos).add_(torch.mul(swapped, sin))
    return rotated if rotated.dtype == x.dtype else rotated.to(x.dtype)
