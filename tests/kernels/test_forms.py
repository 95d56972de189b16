"""Which form of the C++ kernels runs, and that all forms have the same bits."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draftsmith.kernels import backend, build
from draftsmith.kernels.backend import describe
from draftsmith.kernels.errors import KernelEnvironmentError
from draftsmith.kernels.forms import FORMS, NAMES, candidates, offered
from draftsmith.kernels.linear import linear
from tests.support.kernel_cases import differing, outputs

AVX512, AVX2 = FORMS
# Compiles nothing and answers the linking with a library that was built before.
COPY = 'for last; do :; done\n[ "$1" = --version ] || cp {library} "$last"'
NO_AVX512 = 'case "$*" in *-mavx512f*) echo "unknown option -mavx512f" >&2; exit 1;; esac\n'


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A process that has not chosen yet, with a compiler that copies a library built before."""
    info = describe()
    if info.library is None:
        pytest.skip(info.reason)
    _set_compiler(monkeypatch, tmp_path, COPY.format(library=info.library))
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DRAFTSMITH_KERNELS", raising=False)
    backend._decide.cache_clear()
    yield monkeypatch
    backend._decide.cache_clear()


def _set_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def _report(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ("AVX512", ["avx512", "avx2"]),
        ("AVX512_VNNI", ["avx512", "avx2"]),
        ("AVX2", ["avx2"]),
        ("DEFAULT", []),
        ("NO AVX", []),
        ("SVE256", []),
    ],
)
def test_a_processor_is_offered_its_forms_best_first(capability: str, names: list[str]) -> None:
    assert [form.name for form in offered(capability)] == names


def test_a_form_that_is_asked_for_is_tried_alone() -> None:
    assert candidates("AVX512", "avx2") == [AVX2]
    assert candidates("AVX512", None) == (AVX512, AVX2)
    with pytest.raises(KernelEnvironmentError, match="offers AVX2, at most the form 'avx2'"):
        candidates("AVX2", "avx512")
    with pytest.raises(KernelEnvironmentError, match="DEFAULT, AVX2 with FMA is needed"):
        candidates("DEFAULT", "avx2")


@pytest.mark.parametrize(("capability", "form"), [("AVX512", AVX512), ("AVX2", AVX2)])
def test_the_best_form_of_the_processor_runs(
    capability: str, form: object, undecided: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _report(undecided, capability)
    info = describe()
    assert (info.backend, info.left_out) == ("cpp", "")
    [wanted] = [known for known in FORMS if known is form]
    assert info.form == wanted.name
    assert f"{wanted.title} form" in info.reason
    assert set(wanted.flags) <= set(info.flags)
    [made] = (tmp_path / "cache").rglob("*.so")
    assert wanted.name in made.name and str(made) == info.library


def test_a_lesser_form_runs_when_it_is_asked_for(undecided: pytest.MonkeyPatch) -> None:
    _report(undecided, "AVX512")
    undecided.setenv("DRAFTSMITH_KERNELS", "avx2")
    info = describe()
    assert (info.backend, info.form, info.row_stable) == ("cpp", "avx2", True)
    assert "DRAFTSMITH_KERNELS" in info.reason
    assert not any("avx512" in flag for flag in info.flags)


def test_a_form_that_the_processor_lacks_is_refused_when_asked_for(
    undecided: pytest.MonkeyPatch,
) -> None:
    _report(undecided, "AVX2")
    undecided.setenv("DRAFTSMITH_KERNELS", "avx512")
    with pytest.raises(KernelEnvironmentError, match="is 'avx512'.* offers AVX2.*; unset it"):
        linear(torch.zeros(1, 4), torch.zeros(2, 4))


def test_a_compiler_without_avx512_leaves_that_form_out_and_it_is_logged(
    undecided: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = describe().library
    backend._decide.cache_clear()
    _set_compiler(undecided, tmp_path, NO_AVX512 + COPY.format(library=library))
    _report(undecided, "AVX512")
    with caplog.at_level(logging.WARNING):
        info = describe()
    assert (info.backend, info.form) == ("cpp", "avx2")
    assert "AVX-512 is left out" in info.left_out and "-mavx512f" in info.left_out
    assert info.left_out in info.reason
    assert len([record for record in caplog.records if "-mavx512f" in record.message]) == 1


def test_a_form_that_is_asked_for_and_cannot_be_built_is_an_error(
    undecided: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _set_compiler(undecided, tmp_path, NO_AVX512 + "exit 0")
    _report(undecided, "AVX512")
    undecided.setenv("DRAFTSMITH_KERNELS", "avx512")
    with pytest.raises(KernelEnvironmentError, match="is 'avx512'.*-mavx512f.*unset it"):
        describe()


def test_the_avx512_form_compiles_and_multiplies_in_whole_vectors(
    cpp: None, tmp_path: Path
) -> None:
    """On any processor of its family: the library is built and loaded, its code looked at."""
    compiler = describe().compiler
    assert compiler is not None
    path = tmp_path / "kernels.so"
    build.build(compiler, AVX512, path)
    build.load(path)
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump is not installed")
    code = subprocess.run([objdump, "-d", str(path)], capture_output=True, text=True, check=True)
    products = [line for line in code.stdout.splitlines() if "vfmadd" in line]
    assert sum("zmm" in line for line in products) > 500


def test_all_forms_have_the_same_bits(cpp: None, monkeypatch: pytest.MonkeyPatch) -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if offered(capability) != FORMS:
        pytest.skip(f"the processor offers {capability}, AVX512 is needed")
    found = {}
    try:
        for name in NAMES:
            monkeypatch.setenv("DRAFTSMITH_KERNELS", name)
            backend._decide.cache_clear()
            assert describe().form == name
            found[name] = outputs()
    finally:
        backend._decide.cache_clear()
    assert differing(found["avx512"], found["avx2"]) == []
