"""Weights of the CPU's products in the order in which they are multiplied.

Sixteen rows lie together, a panel, column after column: ``[N, K]`` becomes ``[ceil(N / 16), K,
16]``, rows past N zero. So one column of a panel is two vectors of eight sums, and a product reads
its weights from the first byte to the last (``linear/product.h``). In a column of 16-bit numbers
rows 0 to 7 stand at the even places and rows 8 to 15 at the odd ones: a shift and a mask make two
vectors of fp32 of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from draftsmith.kernels.errors import KernelInputError

ROWS = 16  # of a panel


class PackedWeight(ABC):
    """A weight ``[N, K]`` whose numbers are held in an order of their own, mostly on the CPU."""

    shape: tuple[int, int]
    dtype: torch.dtype

    @property
    def device(self) -> torch.device:
        """Where its numbers are."""
        return torch.device("cpu")

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes that it takes in memory."""

    @abstractmethod
    def unpack(self) -> torch.Tensor:
        """The dense tensor ``[N, K]``, bit for bit."""

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Dense ``[len(index), K]``: these rows of it. KernelInputError past the last one."""
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < self.shape[0]:
            raise KernelInputError(
                f"rows {int(index.min())} to {int(index.max())} are asked for, the weight has"
                f" {self.shape[0]}"
            )
        return self._rows(index)

    @abstractmethod
    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        """``rows`` of an index that was checked."""


Weight = torch.Tensor | PackedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelWeight(PackedWeight):
    """Numbers as they are, fp32, bf16 or fp16."""

    shape: tuple[int, int]
    dtype: torch.dtype
    panels: torch.Tensor  # [ceil(N / 16), K, 16]

    @property
    def num_bytes(self) -> int:
        return self.panels.numel() * self.panels.element_size()

    def unpack(self) -> torch.Tensor:
        order = places(self.dtype)
        return from_panels(self.panels, order)[: self.shape[0]]

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        return self.panels[index // ROWS, :, places(self.dtype)[index % ROWS]]


def places(dtype: torch.dtype) -> torch.Tensor:
    """int64 ``[16]``: where in a column each row of a panel stands."""
    row = torch.arange(ROWS)
    return row if dtype == torch.float32 or dtype == torch.float16 else row % 8 * 2 + row // 8


def to_panels(weight: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """``[N, K]`` -> ``[ceil(N / 16), K, 16]``, row r of a panel at ``order[r]``."""
    num_rows, depth = weight.shape
    panels = weight.new_zeros(-(-num_rows // ROWS), depth, ROWS)
    for row, place in enumerate(order.tolist()):
        column = weight[row::ROWS]
        panels[: len(column), :, place] = column
    return panels


def from_panels(panels: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """The inverse: ``[panels * 16, K]``, padding included."""
    return panels[:, :, order].transpose(1, 2).reshape(-1, panels.shape[1])


def pack_panels(weight: torch.Tensor) -> PanelWeight:
    """Reorder ``[N, K]`` of fp32, bf16 or fp16 on the CPU; KernelInputError for anything else."""
    known = weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if not known or not weight.is_cpu or weight.dim() != 2:
        raise KernelInputError(
            f"weight is {weight.dtype} {tuple(weight.shape)} on {weight.device}; fp32, bf16 or"
            " fp16 [N, K] on the CPU is needed"
        )
    shape = (weight.shape[0], weight.shape[1])
    order = places(weight.dtype)
    return PanelWeight(shape=shape, dtype=weight.dtype, panels=to_panels(weight, order))


__all__ = ["ROWS", "PackedWeight", "PanelWeight", "Weight", "pack_panels"]
