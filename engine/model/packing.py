"""The form that a target's matrices take in memory: as they are, in panels, or bf16 in 12 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import torch

from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.job import WeightForm
from draftsmith.kernels.backend import library
from draftsmith.kernels.bf12_gemv import MAX_ESCAPES, commonest, high_byte_counts, pack
from draftsmith.kernels.panels import Weight, pack_panels

Packer = Callable[[torch.Tensor], Weight]


@dataclass(slots=True)
class Packing:
    """Packs matrices to 12 bits as they come, and keeps count. A matrix of which more than one per
    cent lies outside the sixteen commonest high bytes is put into panels as it is.
    """

    num_packed: int = 0
    reasons: list[str] = field(default_factory=list)  # why the others stayed plain

    def check(self, name: str) -> None:
        """UnsupportedError when nothing could be packed."""
        if self.reasons and not self.num_packed:
            raise UnsupportedError(
                f"weights=bf12 gains nothing for {name}: all {len(self.reasons)} matrices stay"
                f" plain (the first, {self.reasons[0]}); use weights=plain"
            )

    def __call__(self, tensor: torch.Tensor) -> Weight:
        highs, escapes = commonest(high_byte_counts(tensor))
        if escapes <= MAX_ESCAPES:
            weight = pack(tensor, highs)
            self.num_packed += 1
            return weight
        self.reasons.append(
            f"{tuple(tensor.shape)}: {escapes:.1%} of the numbers lie outside the sixteen commonest"
            " high bytes"
        )
        return pack_panels(tensor)


def as_they_are(tensor: torch.Tensor) -> Weight:
    """Panels where the C++ kernels run on this tensor, else the tensor."""
    runs = tensor.is_cpu and library() is not None
    return pack_panels(tensor) if runs else tensor


def choose_packing(form: WeightForm, dtype: torch.dtype, device: torch.device) -> Packer:
    """What packs the matrices of a target. ``auto`` takes 12 bits where they pay: bf16 on a CPU
    that runs the C++ kernels. EngineInputError where ``bf12`` is asked for and cannot be had.
    """
    if form not in get_args(WeightForm):
        raise EngineInputError(f"weights {form!r} is not one of {', '.join(get_args(WeightForm))}")
    possible = dtype == torch.bfloat16 and device.type == "cpu"
    if form == "bf12" and not possible:
        raise EngineInputError(
            "weights=bf12 is a form of bfloat16 weights on the CPU, not of"
            f" {str(dtype).removeprefix('torch.')} on {device};"
            " use weights=plain, or dtype bfloat16"
        )
    if form == "bf12" and library() is None:
        raise EngineInputError(
            "weights=bf12 needs the C++ kernels, which do not run here (draftsmith doctor says"
            " why); use weights=plain"
        )
    packs = form != "plain" and possible and library() is not None
    return Packing() if packs else as_they_are
