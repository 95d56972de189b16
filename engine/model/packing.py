"""Which form a target's matrices take in memory: as they are, or bf16 in 12 bits without loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

import torch

from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.job import WeightForm
from draftsmith.kernels.backend import library
from draftsmith.kernels.bf12_gemv import MAX_ESCAPES, Weight, commonest, high_byte_counts, pack

_MULTIPLE = 8  # rows of a matrix that is packed: two halves of whole groups (gate and up)


@dataclass(slots=True)
class Packing:
    """Packs matrices as they come, and keeps count. A matrix stays plain where more than one per
    cent of its numbers lie outside the sixteen commonest high bytes, or its rows are not a multiple
    of 8.
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
        reason = ""
        if tensor.shape[0] % _MULTIPLE:
            reason = f"{tensor.shape[0]} rows are no multiple of {_MULTIPLE}"
        else:
            highs, escapes = commonest(high_byte_counts(tensor))
            if escapes <= MAX_ESCAPES:
                weight = pack(tensor, highs)
                self.num_packed += 1
                return weight
            reason = f"{escapes:.1%} of the numbers lie outside the sixteen commonest high bytes"
        self.reasons.append(f"{tuple(tensor.shape)}: {reason}")
        return tensor


def choose_packing(form: WeightForm, dtype: torch.dtype, device: torch.device) -> Packing | None:
    """What packs the matrices of a target; None: nothing. ``auto`` packs where it pays: bf16 on a
    CPU that runs the C++ kernels. EngineInputError where ``bf12`` is asked for and cannot be had.
    """
    if form not in get_args(WeightForm):
        raise EngineInputError(f"weights {form!r} is not one of {', '.join(get_args(WeightForm))}")
    possible = dtype == torch.bfloat16 and device.type == "cpu"
    if form == "bf12" and not possible:
        raise EngineInputError(
            f"weights=bf12 is a form of bfloat16 weights on the CPU, not of {dtype} on {device};"
            " use weights=plain, or dtype bfloat16"
        )
    if form == "bf12" and library() is None:
        raise EngineInputError(
            "weights=bf12 needs the C++ kernels, which do not run here (draftsmith doctor says"
            " why); use weights=plain"
        )
    return Packing() if form != "plain" and possible and library() is not None else None
