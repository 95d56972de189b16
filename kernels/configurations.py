"""Block shapes of the Triton kernels, as data: one default a kernel, others by architecture.

A block shape never changes what is computed, but those that fix an order of sums (``BLOCK_K``,
``SPLIT``) change its last bits: all steps of one engine must use one table. Nothing is tuned while
serving: a table comes from here, or from whoever calls ``use_configurations``. None of these
shapes has been timed on a card yet; they are what compiles without spills (``scripts/aot.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from draftsmith.kernels.errors import KernelInputError

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """``blocks`` are the kernel's tunable constants by name; ``num_stages`` loads go ahead."""

    blocks: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2


Table = Mapping[str, Mapping[str, Configuration]]  # kernel -> architecture or DEFAULT

TABLE: Table = {
    "accept": {
        DEFAULT: Configuration(blocks={"SPLIT": 4096, "BLOCK": 512}, num_warps=8, num_stages=1)
    },
    "bf12_gemv": {
        DEFAULT: Configuration(blocks={"BLOCK_N": 64, "BLOCK_K": 64, "SPLIT": 2048}, num_warps=4)
    },
    "draft_head": {
        DEFAULT: Configuration(blocks={"BLOCK_N": 64, "BLOCK_K": 64}, num_warps=8, num_stages=2)
    },
    "gate": {DEFAULT: Configuration(blocks={"BLOCK": 1024}, num_warps=4, num_stages=1)},
    "gather_cache": {DEFAULT: Configuration(num_warps=4, num_stages=1)},
    "linear": {
        DEFAULT: Configuration(
            blocks={"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128}, num_warps=4, num_stages=4
        ),
        "gfx942": Configuration(
            blocks={"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 128}, num_warps=4, num_stages=2
        ),
    },
    "noise": {DEFAULT: Configuration(blocks={"BLOCK": 1024}, num_stages=1)},
    "norm_rope_cache": {DEFAULT: Configuration(num_warps=1, num_stages=1)},
    "rms_norm": {DEFAULT: Configuration(num_warps=8, num_stages=1)},
    "tree_attention": {
        DEFAULT: Configuration(blocks={"BLOCK_N": 32, "SPLIT": 128}, num_warps=4, num_stages=2),
        "gfx942": Configuration(blocks={"BLOCK_N": 32, "SPLIT": 128}, num_warps=4, num_stages=1),
    },
}

_override: ContextVar[Mapping[str, Configuration] | None] = ContextVar(
    "draftsmith_kernel_configurations", default=None
)


def configuration(kernel: str, architecture: str) -> Configuration:
    """What to launch ``kernel`` with; an architecture that has no entry takes the default."""
    override = _override.get()
    if override is not None and kernel in override:
        return override[kernel]
    shapes = TABLE[kernel]
    return shapes.get(architecture, shapes[DEFAULT])


@contextmanager
def use_configurations(shapes: Mapping[str, Configuration]) -> Iterator[None]:
    """Launch the kernels named with other block shapes inside the block, on any card."""
    for kernel, shape in shapes.items():
        _check(kernel, shape)
    token = _override.set({**(_override.get() or {}), **shapes})
    try:
        yield
    finally:
        _override.reset(token)


def _check(kernel: str, shape: Configuration) -> None:
    if kernel not in TABLE:
        raise KernelInputError(f"no kernel {kernel!r} has block shapes; use one of {list(TABLE)}")
    wanted = set(TABLE[kernel][DEFAULT].blocks)
    if set(shape.blocks) != wanted:
        raise KernelInputError(
            f"block shapes of {kernel} are {sorted(shape.blocks)}; {sorted(wanted)} are needed"
        )
    for name, value in {**shape.blocks, "num_warps": shape.num_warps}.items():
        if value < 1 or value & (value - 1):
            raise KernelInputError(f"{name} of {kernel} is {value}; a power of two is needed")
    if shape.num_stages < 1:
        raise KernelInputError(f"num_stages of {kernel} is {shape.num_stages}; use 1 or more")
