"""Builds the C++ kernels once and loads them.

One shared library a form (``forms.py``) with a plain C interface, called through ctypes with data
pointers: it includes no torch header, so it compiles in seconds, works with every torch version,
and a call costs microseconds. It is kept in a cache folder under a hash of sources, flags and
compiler. It uses the OpenMP runtime that torch has loaded (same library name), with the thread
count torch was given.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import platformdirs

from draftsmith.kernels import forms
from draftsmith.kernels.errors import KernelEnvironmentError, KernelInputError

_FOLDER = Path(__file__).parent
SOURCES = (
    "bf12_gemv/cpu.cpp",
    "linear/cpu.cpp",
    "tree_attention/cpu.cpp",
    "decoder_layers/cpu.cpp",
    "noise/cpu.cpp",
    "top_k/cpu.cpp",
    "draft_head/cpu.cpp",
)
HEADERS = (
    *("lanes.h", "bf12_gemv/packed.h", "linear/product.h", "tree_attention/attention.h"),
    "top_k/best.h",
)
# No contraction: the noise must round after each operation. Products fuse by intrinsics.
_FLAGS = (
    *("-std=c++17", "-O3", "-fopenmp", "-shared", "-fPIC"),
    *("-ffp-contract=off", "-fno-trapping-math", "-fvisibility=hidden"),
)
COMPILE_SECONDS = 300

_pointer, _int64, _int = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_float, _uint64, _uint32 = ctypes.c_float, ctypes.c_uint64, ctypes.c_uint32
_SIGNATURES: dict[str, list[type]] = {
    "draftsmith_bf12_high_bytes": [_pointer, _int64, _pointer, _int],
    "draftsmith_bf12_escapes": [_pointer, _int64, _int64, _pointer, _pointer, _int],
    "draftsmith_bf12_pack": [
        *(_pointer, _int64, _int64, _pointer, _pointer, _pointer, _pointer, _pointer, _int),
    ],
    "draftsmith_linear": [
        *(_pointer, _int64, _pointer, _int, _pointer, _pointer),
        *(_int64, _int64, _int64, _int),
    ],
    "draftsmith_tree_attention": [
        *(_pointer, _pointer, _pointer, _int, _int64, _int64),
        *(_pointer, _pointer, _pointer, _pointer, _pointer),
        *(_int64, _int64, _int64, _int64, _int64, _int64, _int64, _float, _float, _int),
    ],
    "draftsmith_decoder_layers": [_pointer, _pointer, _int],
    "draftsmith_draft_head": [
        *(_pointer, _int64, _pointer, _int, _pointer, _float),
        *(_int64, _int64, _int64, _int64, _pointer, _pointer, _pointer, _int),
    ],
    "draftsmith_philox": [_uint64, _uint32, _uint32, _int64, _int64, _pointer],
    "draftsmith_top_k": [_pointer, _int64, _int64, _int64, _int64, _pointer, _int],
    "draftsmith_noisy_argmax": [_pointer, _int64, _uint64, _uint32, _pointer],
    "draftsmith_gumbel_rows": [_pointer, _pointer, _int64, _int64, _uint32, _pointer, _int],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What environment variables say: ``DRAFTSMITH_CACHE`` replaces the user's cache folder,
    ``DRAFTSMITH_KERNELS`` names the form of the C++ kernels that is to run or, ``reference``,
    switches them off, ``CXX`` names the compiler.
    """

    cache_root: Path
    kernels: forms.FormName | Literal["reference"] | None
    compiler: str | None


def environment() -> Environment:
    """The one place of this package that reads environment variables. ``KernelInputError`` for a
    value of ``DRAFTSMITH_KERNELS`` that means nothing.
    """
    kernels = os.environ.get("DRAFTSMITH_KERNELS", "")
    if kernels not in ("", "reference", *forms.NAMES):
        raise KernelInputError(
            f"DRAFTSMITH_KERNELS is {kernels!r}: set it to {' or '.join(forms.NAMES)} for that form"
            " of the C++ kernels, to reference for plain torch, or unset it"
        )
    root = os.environ.get("DRAFTSMITH_CACHE")
    return Environment(
        cache_root=Path(root) if root else Path(platformdirs.user_cache_dir("draftsmith")),
        kernels=cast(forms.FormName | Literal["reference"], kernels) if kernels else None,
        compiler=os.environ.get("CXX") or None,
    )


def find_compiler(named: str | None) -> str:
    """Full path of a C++ compiler, the one ``named`` if given."""
    for name in [named] if named else ["c++", "g++", "clang++"]:
        path = shutil.which(name)
        if path is not None:
            return path
    wanted = f"{named!r} (from CXX)" if named else "c++, g++ or clang++"
    raise KernelEnvironmentError(
        f"no C++ compiler: {wanted} is not on PATH; install g++ or set CXX"
    )


def flags(form: forms.Form) -> tuple[str, ...]:
    """What the compiler is given besides files."""
    return (*_FLAGS, *form.flags)


def library_path(compiler: str, form: forms.Form, cache_root: Path) -> Path:
    """Where the library of these sources, flags and compiler is or will be."""
    digest = hashlib.sha256()
    for name in (*SOURCES, *HEADERS):
        digest.update((_FOLDER / name).read_bytes())
    digest.update(" ".join(flags(form)).encode())
    digest.update(_run([compiler, "--version"]).encode())
    return cache_root / "kernels" / f"draftsmith-{form.name}-{digest.hexdigest()[:16]}.so"


def build(compiler: str, form: forms.Form, path: Path) -> None:
    """Compile a form into ``path`` unless another process has. The file appears whole or not at
    all.
    """
    command = [compiler, *flags(form)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if path.exists():
                return
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / path.name
                objects = [f"{folder}/{index}.o" for index in range(len(SOURCES))]
                with ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a compiler
                    commands = (
                        [*command, f"-I{_FOLDER}", "-c", str(_FOLDER / name), "-o", file]
                        for name, file in zip(SOURCES, objects, strict=True)
                    )
                    list(pool.map(_run, commands))
                _run([*command, *objects, "-o", str(made)])
                os.replace(made, path)
    except OSError as error:
        raise KernelEnvironmentError(
            f"cannot write the kernel library {path}: {error};"
            " set DRAFTSMITH_CACHE to a writable folder"
        ) from error


def load(path: Path) -> ctypes.CDLL:
    """Load a built library and declare its functions."""
    try:
        library = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = None
    except (OSError, AttributeError) as error:
        raise KernelEnvironmentError(
            f"cannot load the kernel library {path}: {error}; delete it to build it anew"
        ) from error
    return library


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelEnvironmentError(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise KernelEnvironmentError(f"{command[0]} failed with code {done.returncode}: {tail}")
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock that ends with the process, so a killed build blocks nobody."""
    if sys.platform == "win32":
        raise KernelEnvironmentError("the C++ kernels are built on Linux and macOS only")
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
