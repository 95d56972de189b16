"""How Triton kernels are launched, and what each offers to be compiled ahead of time.

This module does not import Triton, so the modules that do can be found without it. Whether they run
compiled or in Triton's interpreter is settled when Triton is imported: ``TRITON_INTERPRET=1`` in
the environment then, or not.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from draftsmith.kernels.configurations import Configuration
from draftsmith.kernels.cost import note_launch
from draftsmith.kernels.device import require_usable
from draftsmith.kernels.errors import KernelEnvironmentError

TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.uint8: "u8",
    torch.bool: "i1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One form of a kernel function to compile ahead of time. ``arguments`` gives the type of each
    run-time parameter in Triton's spelling (``*bf16``, ``i32``, ``fp32``); integers named in
    ``divisible`` are multiples of 16, and so are all pointers. ``constants`` are the constexpr
    parameters that no configuration sets. ``options`` go to the compiler.
    """

    kernel: str  # name in the table of configurations
    label: str
    function: Any
    arguments: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: frozenset[str] = frozenset()
    options: Mapping[str, Any] = field(default_factory=dict)


@cache
def triton_problem() -> str | None:
    """Why no Triton kernel can run in this environment; None when it is installed."""
    if importlib.util.find_spec("triton") is not None:
        return None
    return "Triton is not installed; run `pip install triton` (Linux only)"


def interpreting() -> bool:
    """Whether Triton runs its kernels in the interpreter. KernelEnvironmentError without Triton."""
    problem = triton_problem()
    if problem is not None:
        raise KernelEnvironmentError(problem)
    from triton import knobs

    return bool(knobs.runtime.interpret)


def launch(
    function: Any,
    grid: Sequence[int],
    arguments: Mapping[str, Any],
    configuration: Configuration,
    **options: Any,
) -> None:
    """Run ``function`` over ``grid`` with ``arguments`` by name; an empty grid launches nothing.
    The configuration's blocks that it knows are passed as constants; ``options`` go to the
    compiler, over the configuration's.
    """
    if 0 in grid:
        return
    note_launch(function.__name__)
    arguments = {**arguments, **blocks_of(function, configuration)}
    if interpreting():
        function[tuple(grid)](**arguments)
        return
    device = next(a.device for a in arguments.values() if isinstance(a, torch.Tensor))
    require_usable(device)
    with torch.cuda.device(device):
        function[tuple(grid)](**arguments, **compiler_options(configuration, options))


def blocks_of(function: Any, configuration: Configuration) -> dict[str, int]:
    """The blocks that are parameters of ``function``: kernels that belong together share a table
    entry.
    """
    return {name: size for name, size in configuration.blocks.items() if name in function.arg_names}


def compiler_options(configuration: Configuration, options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "num_warps": configuration.num_warps,
        "num_stages": configuration.num_stages,
        **options,
    }
