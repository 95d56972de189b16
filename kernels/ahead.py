"""Triton kernels compiled ahead of time, without a card, and what their binaries ask of one.

CUDA binaries are read with the ``cuobjdump`` of the Triton wheel, AMD's from the notes of their
assembly. Triton keeps what it compiled in its cache, so a second pass only reads.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftsmith.kernels.backend import TRITON_KERNELS
from draftsmith.kernels.configurations import Configuration, configuration
from draftsmith.kernels.device import COMPILED_FOR, SHARED_BYTES
from draftsmith.kernels.errors import KernelEnvironmentError
from draftsmith.kernels.launching import Variant, blocks_of, compiler_options, interpreting

_POINTER_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one compiled kernel takes. ``registers`` are per thread (vector registers on AMD);
    ``spill_bytes`` is the memory per thread that takes what registers do not hold.
    """

    kernel: str
    label: str
    architecture: str
    num_warps: int
    num_stages: int
    registers: int
    shared_bytes: int
    spill_bytes: int

    @property
    def fits(self) -> bool:
        """Whether nothing spills and a program's shared memory is there."""
        return not self.spill_bytes and self.shared_bytes <= SHARED_BYTES[self.architecture]


def variants(kernels: Iterable[str] = TRITON_KERNELS) -> Iterator[Variant]:
    """All that the kernels named offer to be compiled."""
    for kernel in kernels:
        module = importlib.import_module(f"draftsmith.kernels.{kernel}.triton")
        yield from module.variants()


def compile_ahead(variant: Variant, architecture: str, shape: Configuration | None = None) -> Usage:
    """Compile for an architecture of ``COMPILED_FOR``, with the block shapes that the table names
    for it unless others are given. KernelEnvironmentError where Triton cannot compile here.
    """
    if interpreting():
        raise KernelEnvironmentError(
            "Triton runs in its interpreter here, which compiles nothing; unset TRITON_INTERPRET"
        )
    import triton
    from triton.compiler import ASTSource

    shape = shape or configuration(variant.kernel, architecture)
    constants = {**variant.constants, **blocks_of(variant.function, shape)}
    options = compiler_options(shape, variant.options)
    names = list(variant.function.arg_names)
    signature = {name: variant.arguments.get(name, "constexpr") for name in names}
    aligned = {
        (index,): [["tt.divisibility", _POINTER_ALIGNMENT]]
        for index, name in enumerate(names)
        if signature[name].startswith("*") or name in variant.divisible
    }
    compiled = triton.compile(
        ASTSource(variant.function, signature, constants, aligned),
        target=_target(architecture),
        options=options,
    )
    registers, spill_bytes = _registers_and_spills(compiled)
    return Usage(
        kernel=variant.kernel,
        label=variant.label,
        architecture=architecture,
        num_warps=options["num_warps"],
        num_stages=options["num_stages"],
        registers=registers,
        shared_bytes=compiled.metadata.shared,
        spill_bytes=spill_bytes,
    )


def _target(architecture: str) -> Any:
    from triton.backends.compiler import GPUTarget

    if architecture not in COMPILED_FOR:
        raise KernelEnvironmentError(
            f"kernels are compiled ahead for {', '.join(COMPILED_FOR)}, not for {architecture!r}"
        )
    if architecture.startswith("sm"):
        return GPUTarget("cuda", int(architecture.removeprefix("sm")), 32)
    return GPUTarget("hip", architecture, 64)


def _registers_and_spills(compiled: Any) -> tuple[int, int]:
    if "amdgcn" in compiled.asm:
        return amd_usage(compiled.asm["amdgcn"])
    return cuda_usage(_resource_usage(compiled.asm["cubin"]))


def amd_usage(assembly: str) -> tuple[int, int]:
    """Vector registers and spilled bytes per lane, from the metadata of gfx assembly."""
    found = {
        name: int(_match(rf"\.{name}:\s+(\d+)", assembly))
        for name in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")
    }
    spilled = found["vgpr_spill_count"] + found["sgpr_spill_count"]
    return found["vgpr_count"], 4 * spilled


def cuda_usage(report: str) -> tuple[int, int]:
    """Registers and bytes of stack per thread, from ``cuobjdump -res-usage``."""
    return int(_match(r"REG:(\d+)", report)), int(_match(r"STACK:(\d+)", report))


def _resource_usage(binary: bytes) -> str:
    from triton import knobs

    tool = Path(knobs.nvidia.cuobjdump.path)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        done = subprocess.run(
            [tool, "-res-usage", path], capture_output=True, text=True, timeout=60, check=False
        )
    if done.returncode != 0:
        raise KernelEnvironmentError(f"{tool.name} failed: {done.stderr.strip()}")
    return done.stdout


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise KernelEnvironmentError(f"the compiler's report has no {pattern!r}: {text[:200]!r}")
    return found.group(1)
