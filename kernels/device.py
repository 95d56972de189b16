"""Processors and cards: the one place that tells cuda, rocm and cpu apart.

An architecture is the name under which block shapes are kept and kernels are compiled: ``sm80``,
``sm90``, ``sm100`` on CUDA, ``gfx942`` on ROCm, ``cpu`` elsewhere. No card is asked before one is
named.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from draftsmith.kernels.errors import KernelEnvironmentError

Platform = Literal["cuda", "rocm", "cpu", "other"]

MINIMAL_CAPABILITY = (8, 0)  # the first with bf16 products
ROCM_ARCHITECTURES = ("gfx90a", "gfx942", "gfx950")  # wave64 cards with bf16 matrix products
# What scripts/aot.py compiles for, and the shared memory that one program may take there.
SHARED_BYTES = {"sm80": 166_912, "sm90": 232_448, "sm100": 232_448, "gfx942": 65_536}
COMPILED_FOR = tuple(SHARED_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One GPU as its driver shows it; a slice of a card (MIG) shows its own memory and units."""

    index: int
    platform: Platform
    name: str
    architecture: str
    memory_bytes: int
    num_units: int  # streaming multiprocessors or compute units
    problem: str | None  # why the kernels do not run on it; None when they do


def platform_of(device: torch.device) -> Platform:
    if device.type == "cuda":  # torch's name for both
        return "rocm" if torch.version.hip else "cuda"
    return "cpu" if device.type == "cpu" else "other"


def is_gpu(device: torch.device) -> bool:
    """Whether Triton's kernels are compiled for it."""
    return device.type == "cuda"


def architecture_of(device: torch.device) -> str:
    """``cpu`` for everything that is no GPU."""
    return card(_index(device)).architecture if is_gpu(device) else "cpu"


def require_usable(device: torch.device) -> None:
    """KernelEnvironmentError, with the reason, for a GPU on which the kernels do not run."""
    if is_gpu(device) and (problem := card(_index(device)).problem) is not None:
        raise KernelEnvironmentError(problem)


def cards() -> tuple[Card, ...]:
    """All GPUs that torch sees; none where it has no driver or was built for the CPU."""
    if not torch.cuda.is_available():
        return ()
    return tuple(card(index) for index in range(torch.cuda.device_count()))


@cache
def card(index: int) -> Card:
    properties = torch.cuda.get_device_properties(index)
    platform = platform_of(torch.device("cuda"))
    if platform == "rocm":
        architecture = str(properties.gcnArchName).split(":")[0]
        problem = rocm_problem(properties.name, architecture)
    else:
        architecture = f"sm{properties.major}{properties.minor}"
        problem = cuda_problem(properties.name, (properties.major, properties.minor))
    return Card(
        index=index,
        platform=platform,
        name=properties.name,
        architecture=architecture,
        memory_bytes=properties.total_memory,
        num_units=properties.multi_processor_count,
        problem=problem,
    )


def cuda_problem(name: str, capability: tuple[int, int]) -> str | None:
    """Why the kernels do not run on a CUDA card; None when they do."""
    if capability >= MINIMAL_CAPABILITY:
        return None
    has, needs = (".".join(map(str, pair)) for pair in (capability, MINIMAL_CAPABILITY))
    return (
        f"{name} has compute capability {has}, {needs} or higher is needed (bf16 products);"
        " use another card, or --device cpu"
    )


def rocm_problem(name: str, architecture: str) -> str | None:
    """As ``cuda_problem``."""
    if architecture in ROCM_ARCHITECTURES:
        return None
    return (
        f"{name} is {architecture or 'of unknown architecture'}; the kernels are made for"
        f" {', '.join(ROCM_ARCHITECTURES)}; use another card, or --device cpu"
    )


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
