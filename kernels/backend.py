"""Which form of a kernel runs: "cpp", "triton" or "reference" (plain torch).

Tensors on the CPU take C++ where it can be built, in the best form (``forms.py``) that the
processor has and the compiler knows; those on CUDA and ROCm take Triton; what is left takes the
reference.

Nothing is probed at import. The first kernel call decides about C++, once a process;
``use_backend`` overrides the decision for a block of code. ``use_backend("triton")`` takes tensors
on the CPU too, if Triton runs in its interpreter (``TRITON_INTERPRET=1``): that is for tests.
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
from typing import Literal, get_args

import torch

from draftsmith.kernels import build, forms
from draftsmith.kernels.device import is_gpu
from draftsmith.kernels.errors import KernelEnvironmentError, KernelInputError
from draftsmith.kernels.launching import interpreting, triton_problem

Backend = Literal["cpp", "reference", "triton"]

_log = logging.getLogger(__name__)
_forced: ContextVar[Backend | None] = ContextVar("draftsmith_kernel_backend", default=None)
_decision_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The C++ and the Triton form, where there is one, are always row-stable; the reference only if
    it says so.
    """

    name: str
    has_cpp: bool
    stable_reference: bool
    has_triton: bool = False


_KERNELS = (
    _Kernel("accept", has_cpp=False, stable_reference=True, has_triton=True),
    _Kernel("bf12_gemv", has_cpp=True, stable_reference=True, has_triton=True),
    _Kernel("decoder_layers", has_cpp=True, stable_reference=False),
    _Kernel("draft_head", has_cpp=True, stable_reference=False, has_triton=True),
    _Kernel("gate", has_cpp=False, stable_reference=True, has_triton=True),
    _Kernel("gather_cache", has_cpp=False, stable_reference=True, has_triton=True),  # a copy
    _Kernel("linear", has_cpp=True, stable_reference=False, has_triton=True),
    _Kernel("noise", has_cpp=True, stable_reference=True, has_triton=True),  # the same bits in all
    _Kernel("norm_rope_cache", has_cpp=False, stable_reference=True, has_triton=True),
    _Kernel("rms_norm", has_cpp=False, stable_reference=True, has_triton=True),
    _Kernel("top_k", has_cpp=True, stable_reference=True),
    _Kernel("tree_attention", has_cpp=True, stable_reference=False, has_triton=True),
)
_BY_NAME = {kernel.name: kernel for kernel in _KERNELS}
TRITON_KERNELS = tuple(kernel.name for kernel in _KERNELS if kernel.has_triton)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelInfo:
    """One kernel: the form that runs now, and whether a row's bits depend on that row alone."""

    name: str
    backend: Backend
    row_stable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """What ``doctor`` shows. ``row_stable``: a row's bits do not depend on the rows beside it, in
    any kernel. All of it is about tensors on the CPU, or those inside ``use_backend("triton")``.
    """

    backend: Backend
    form: forms.FormName | None  # None: the reference runs
    reason: str
    compiler: str | None
    flags: tuple[str, ...]
    cache_folder: str
    library: str | None
    switched_off: bool  # by the user, not for want of something
    left_out: str  # why a better form that the processor has does not run; "" if none
    kernels: tuple[KernelInfo, ...]
    row_stable: bool


@dataclass(frozen=True, slots=True)
class _Native:
    """Outcome of the one attempt to get the C++ library: ``library`` None means "see reason"."""

    library: ctypes.CDLL | None
    reason: str
    form: forms.Form | None = None
    compiler: str | None = None
    path: str | None = None
    switched_off: bool = False
    left_out: str = ""


def form_for(name: str, tensor: torch.Tensor) -> Backend:
    """The form of kernel ``name`` that takes a call with ``tensor`` now. KernelEnvironmentError
    where that form cannot run, with the fix.
    """
    kernel, forced = _BY_NAME[name], _forced.get()
    if forced == "triton":
        return _triton_form(tensor) if kernel.has_triton else "reference"
    if not tensor.is_cpu:
        off = forced == "reference" or not is_gpu(tensor.device) or _switched_off()
        return "reference" if off or not kernel.has_triton else _triton_form(tensor)
    return "cpp" if kernel.has_cpp and library() is not None else "reference"


def library() -> ctypes.CDLL | None:
    """The C++ kernels for a call made now with tensors on the CPU, or None when they are not to
    run.
    """
    forced = _forced.get()
    if forced in ("reference", "triton"):
        return None
    native = _native()
    if forced == "cpp" and native.library is None:
        raise KernelEnvironmentError(f"the C++ kernels cannot run here: {native.reason}")
    return native.library


@contextmanager
def use_backend(name: Backend) -> Iterator[None]:
    """Force one implementation inside the block; a kernel that has no such form runs its reference.
    ``"cpp"`` and ``"triton"`` raise ``KernelEnvironmentError`` with the reason where they cannot
    run.
    """
    if name not in get_args(Backend):
        known = ", ".join(map(repr, get_args(Backend)))
        raise KernelInputError(f"unknown kernel backend {name!r}; use one of {known}")
    token = _forced.set(name)
    try:
        _require_triton() if name == "triton" else library()
        yield
    finally:
        _forced.reset(token)


def describe() -> BackendInfo:
    """Facts about the implementation in use now; builds the library if that was not tried yet."""
    forced = _forced.get()
    native = _native()
    backend: Backend = forced or ("cpp" if native.library is not None else "reference")
    kernels = tuple(_kernel_info(kernel, backend) for kernel in _KERNELS)
    return BackendInfo(
        backend=backend,
        form=native.form.name if native.form is not None and backend == "cpp" else None,
        reason=f"forced by use_backend({forced!r})" if forced else native.reason,
        compiler=native.compiler,
        flags=build.flags(native.form) if native.form is not None else (),
        cache_folder=str(build.environment().cache_root / "kernels"),
        library=native.path,
        switched_off=native.switched_off,
        left_out=native.left_out,
        kernels=kernels,
        row_stable=all(kernel.row_stable for kernel in kernels),
    )


def _kernel_info(kernel: _Kernel, backend: Backend) -> KernelInfo:
    has = kernel.has_cpp if backend == "cpp" else kernel.has_triton and backend == "triton"
    runs: Backend = backend if has else "reference"
    return KernelInfo(name=kernel.name, backend=runs, row_stable=has or kernel.stable_reference)


def _triton_form(tensor: torch.Tensor) -> Backend:
    _require_triton()
    if tensor.is_cpu and not interpreting():
        raise KernelEnvironmentError(
            "Triton takes tensors on the CPU only in its interpreter;"
            " set TRITON_INTERPRET=1 before Triton is imported"
        )
    return "triton"


def _require_triton() -> None:
    problem = triton_problem()
    if problem is not None:
        raise KernelEnvironmentError(
            f"{problem}; or set DRAFTSMITH_KERNELS=reference to run plain torch"
        )


@cache
def _switched_off() -> bool:
    return build.environment().kernels == "reference"


def _native() -> _Native:
    if _decide.cache_info().currsize:  # every kernel call comes by here: no lock once decided
        return _decide()
    with _decision_lock:  # two threads must not build twice
        return _decide()


@cache
def _decide() -> _Native:
    """A form that was asked for by name and cannot be had is an error; else torch runs instead."""
    environment = build.environment()
    try:
        return _attempt(environment)
    except KernelEnvironmentError as error:
        if environment.kernels is not None:
            raise KernelEnvironmentError(
                f"DRAFTSMITH_KERNELS is {environment.kernels!r}, which cannot run here: {error};"
                " unset it for the best form that can"
            ) from error
        _log.warning("C++ kernels are off, plain torch runs instead (slower): %s", error)
        return _Native(None, str(error))


def _attempt(environment: build.Environment) -> _Native:
    wanted = environment.kernels
    if wanted == "reference":
        return _Native(None, "switched off by DRAFTSMITH_KERNELS=reference", switched_off=True)
    capability = torch.backends.cpu.get_cpu_capability()
    *better, last = forms.candidates(capability, wanted)
    compiler = build.find_compiler(environment.compiler)
    left_out = ""
    for form in better:
        try:
            return _load(form, compiler, environment)
        except KernelEnvironmentError as error:
            _log.warning("the %s form of the C++ kernels is left out: %s", form.title, error)
            left_out = f"{form.title} is left out: {error}"
    return _load(last, compiler, environment, left_out)


def _load(
    form: forms.Form, compiler: str, environment: build.Environment, left_out: str = ""
) -> _Native:
    path = build.library_path(compiler, form, environment.cache_root)
    build.build(compiler, form, path)
    by = "asked for by DRAFTSMITH_KERNELS" if environment.kernels else "the best here"
    reason = f"{form.title} form ({left_out or by}), compiled by {compiler}"
    return _Native(build.load(path), reason, form, compiler, str(path), left_out=left_out)
