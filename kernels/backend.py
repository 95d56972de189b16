"""Which implementation of the CPU kernels runs: "cpp" where it can, else "reference" (torch).

Nothing is probed at import. The first kernel call decides, once a process; ``use_backend``
overrides the decision for a block of code. Only tensors on the CPU come here: other devices run
torch's own.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from draftsmith.kernels import build
from draftsmith.kernels.errors import KernelEnvironmentError, KernelInputError

Backend = Literal["cpp", "reference"]

_log = logging.getLogger(__name__)
_forced: ContextVar[Backend | None] = ContextVar("draftsmith_kernel_backend", default=None)
_decision_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """What ``doctor`` shows. ``row_stable``: a row's bits do not depend on the rows beside it."""

    backend: Backend
    reason: str
    compiler: str | None
    flags: tuple[str, ...]
    cache_folder: str
    library: str | None
    row_stable: bool


@dataclass(frozen=True, slots=True)
class _Native:
    """Outcome of the one attempt to get the C++ library: ``library`` None means "see reason"."""

    library: ctypes.CDLL | None
    reason: str
    compiler: str | None = None
    path: str | None = None


def library() -> ctypes.CDLL | None:
    """The C++ kernels for a call made now, or None when the reference is to run."""
    forced = _forced.get()
    if forced == "reference":
        return None
    native = _native()
    if forced == "cpp" and native.library is None:
        raise KernelEnvironmentError(f"the C++ kernels cannot run here: {native.reason}")
    return native.library


@contextmanager
def use_backend(name: Backend) -> Iterator[None]:
    """Force one implementation inside the block. ``"cpp"`` raises ``KernelEnvironmentError`` with
    the reason where the C++ kernels cannot run.
    """
    if name not in ("cpp", "reference"):
        raise KernelInputError(f'unknown kernel backend {name!r}; use "cpp" or "reference"')
    token = _forced.set(name)
    try:
        library()
        yield
    finally:
        _forced.reset(token)


def describe() -> BackendInfo:
    """Facts about the implementation in use now; builds the library if that was not tried yet."""
    native = _native()
    forced = _forced.get()
    backend: Backend = "cpp" if native.library is not None else "reference"
    return BackendInfo(
        backend=forced or backend,
        reason=f"forced by use_backend({forced!r})" if forced else native.reason,
        compiler=native.compiler,
        flags=tuple(build.FLAGS),
        cache_folder=str(build.environment().cache_root / "kernels"),
        library=native.path,
        row_stable=(forced or backend) == "cpp",
    )


def _native() -> _Native:
    if _decide.cache_info().currsize:  # every kernel call comes by here: no lock once decided
        return _decide()
    with _decision_lock:  # two threads must not build twice
        return _decide()


@cache
def _decide() -> _Native:
    try:
        return _attempt()
    except KernelEnvironmentError as error:
        _log.warning("C++ kernels are off, plain torch runs instead (slower): %s", error)
        return _Native(None, str(error))


def _attempt() -> _Native:
    environment = build.environment()
    if environment.switched_off:
        return _Native(None, "switched off by DRAFTSMITH_KERNELS=reference")
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        raise KernelEnvironmentError(f"the processor offers {capability}, AVX2 with FMA is needed")
    compiler = build.find_compiler(environment.compiler)
    path = build.library_path(compiler, environment.cache_root)
    build.build(compiler, path)
    loaded = build.load(path)
    return _Native(loaded, f"AVX2 processor and {compiler}", compiler, str(path))
