"""What ``doctor`` looks at, one function a check. Nothing here changes the machine."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from draftsmith.kernels.device import Card

Status = Literal["ok", "missing", "optional"]
GIB = 1024**3
LEAST_MEMORY = 2 * GIB  # bytes: the embedded model, its cache and one worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``optional``: absent, and nothing needs it. ``fix`` is empty when there is nothing to do."""

    name: str
    status: Status
    found: str
    fix: str = ""


def python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    return Check(name="python", status="ok", found=found)


def libraries() -> list[Check]:
    """Versions of what the main path imports."""
    checks = []
    for name in ("torch", "transformers", "optuna", "ray"):
        try:
            checks.append(Check(name=name, status="ok", found=metadata.version(name)))
        except metadata.PackageNotFoundError:
            fix = "--in-process works without it; else pip install ray" if name == "ray" else ""
            checks.append(
                Check(
                    name=name,
                    status="optional" if name == "ray" else "missing",
                    found="not installed",
                    fix=fix or f"pip install {name}",
                )
            )
    return checks


def processors() -> Check:
    """Cores that this process may use: affinity and the cgroup's quota both count."""
    from draftsmith.workers.resources import available_cpus

    total = os.cpu_count() or 1
    found = f"{available_cpus()} of {total} (by affinity and cgroup quota)"
    return Check(name="cores", status="ok", found=found)


def threads() -> Check:
    import torch

    found = f"{torch.get_num_threads()} (torch's default; --threads sets it per worker)"
    return Check(name="threads", status="ok", found=found)


def memory() -> Check:
    import psutil

    facts = psutil.virtual_memory()
    limit = _cgroup_number("memory.max", "memory/memory.limit_in_bytes")
    available = facts.available
    found = f"{available / GIB:.1f} of {facts.total / GIB:.1f} GiB free"
    if limit is not None and limit < facts.total:
        available = min(available, limit)
        found += f", cgroup limit {limit / GIB:.1f} GiB"
    if available >= LEAST_MEMORY:
        return Check(name="memory", status="ok", found=found)
    return Check(
        name="memory",
        status="missing",
        found=found,
        fix="free at least 2 GiB for the embedded model",
    )


def kernels() -> list[Check]:
    """Which form of each CPU kernel runs, and what it means for bf16 outputs."""
    from draftsmith.kernels.backend import describe
    from draftsmith.kernels.errors import KernelEnvironmentError

    try:
        info = describe()
    except KernelEnvironmentError as error:  # a form that was asked for by name
        text, _, fix = str(error).rpartition("; ")
        return [Check(name="kernels", status="missing", found=text, fix=fix)]
    fix = ""
    if info.switched_off:
        fix = "unset DRAFTSMITH_KERNELS (correct without the C++ kernels, slower)"
    elif info.backend != "cpp":
        fix = "install g++ on a processor with AVX2 (correct without, slower)"
    elif info.left_out:
        fix = "install a newer g++, or set CXX to one (correct without, slower)"
    status: Status = "ok" if info.backend == "cpp" else "optional"
    why = "" if info.row_stable else "bf16 outputs may differ from stock by ties; they are counted"
    return [
        Check(name="kernels", status=status, found=f"{info.backend}: {info.reason}", fix=fix),
        *(
            Check(
                name=f"kernel {kernel.name}",
                status=_stability(kernel.row_stable),
                found=f"{kernel.backend}, {'' if kernel.row_stable else 'not '}row-stable",
            )
            for kernel in info.kernels
        ),
        Check(
            name="row-stable",
            status=_stability(info.row_stable),
            found=f"{'yes' if info.row_stable else 'no'} (on the CPU)",
            fix=why,
        ),
    ]


def _stability(row_stable: bool) -> Status:
    return "ok" if row_stable else "optional"


def accelerators() -> list[Check]:
    """CUDA or ROCm cards, each with what keeps the kernels off it, and Triton."""
    from draftsmith.kernels.device import cards

    found = cards()
    triton = util.find_spec("triton") is not None
    return [
        *([_card(card) for card in found] or [_no_card()]),
        Check(
            name="triton",
            status="ok" if triton else "missing" if found else "optional",
            found=metadata.version("triton") if triton else "not installed",
            fix="" if triton or not found else "pip install triton",
        ),
    ]


def _card(card: Card) -> Check:
    memory = f"{card.memory_bytes / GIB:.0f} GiB, {card.num_units} units"
    return Check(
        name="gpu",
        status="missing" if card.problem else "ok",
        found=f"{card.index}: {card.name} by {card.platform}, {card.architecture}, {memory}",
        fix=card.problem or "",
    )


def _no_card() -> Check:
    import torch

    kind = "ROCm" if torch.version.hip else "CUDA"
    built = torch.version.cuda or torch.version.hip
    return Check(
        name="gpu",
        status="optional",
        found=f"none ({f'torch is built for {kind} {built}' if built else 'torch is a CPU build'})",
        fix="for --device cuda: a driver and a GPU torch",
    )


def store(address: str) -> Check:
    """Whether the store can be opened. A file that does not exist yet is not created, and a
    database without draftsmith's tables is left as it is.
    """
    from draftsmith.store.addresses import parse_address
    from draftsmith.store.errors import NoTablesError, StoreError
    from draftsmith.store.migrations.upgrade import open_existing

    try:
        parsed = parse_address(address)
        if parsed.file is not None and not parsed.file.exists():
            return _new_file(parsed.file)
        open_existing(address).close()
        return Check(name="store", status="ok", found=parsed.shown)
    except NoTablesError as error:
        text = str(error).partition(" Fix: ")[0]
        fix = "the first run adds its tables; name another with --store to leave it as it is"
        return Check(name="store", status="optional", found=text, fix=fix)
    except StoreError as error:
        text, _, fix = str(error).partition(" Fix: ")
        return Check(name="store", status="missing", found=text, fix=fix)


def embedded_model() -> Check:
    from draftsmith.engine.errors import EngineEnvironmentError
    from draftsmith.engine.model.embedded import EMBEDDED_NAME, embedded_folder

    name = f"model {EMBEDDED_NAME}"
    try:
        return Check(name=name, status="ok", found=str(embedded_folder()))
    except EngineEnvironmentError as error:
        text, _, fix = str(error).partition(";")
        return Check(name=name, status="optional", found=text, fix=fix.strip())


def _new_file(file: Path) -> Check:
    folder = next(parent for parent in file.parents if parent.exists())
    if os.access(folder, os.W_OK):
        return Check(name="store", status="ok", found=f"{file} (made by the first run)")
    fix = "give --store a file in a folder that may be written"
    return Check(name="store", status="missing", found=f"{folder} may not be written", fix=fix)


def _cgroup_number(two: str, one: str) -> int | None:
    text = _read(Path("/sys/fs/cgroup") / two) or _read(Path("/sys/fs/cgroup") / one)
    return int(text) if text is not None and text.isdecimal() else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except OSError:
        return None
