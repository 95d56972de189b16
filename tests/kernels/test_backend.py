"""Which implementation runs, and what happens where the C++ one cannot be built."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from draftsmith.kernels import backend, build
from draftsmith.kernels.backend import describe, library, use_backend
from draftsmith.kernels.errors import KernelEnvironmentError, KernelInputError
from draftsmith.kernels.linear import linear

PROBE = """
import json, sys
import draftsmith.kernels.linear
from draftsmith.kernels import backend
assert backend._decide.cache_info().currsize == 0, "probed at import"
info = backend.describe()
print(json.dumps([info.backend, info.reason, info.library, info.row_stable]))
"""


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A process that has not chosen yet and has an empty cache."""
    backend._decide.cache_clear()
    monkeypatch.setenv("DRAFTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DRAFTSMITH_KERNELS", raising=False)
    yield monkeypatch
    backend._decide.cache_clear()


def _fake_compiler(folder: Path, body: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_forced_reference_runs_torch_and_says_so(cpp: None) -> None:
    x, weight = torch.randn(3, 50), torch.randn(7, 50).bfloat16()
    assert describe().backend == "cpp"
    assert describe().row_stable
    with use_backend("reference"):
        assert library() is None
        assert describe().backend == "reference"
        assert not describe().row_stable
        expected = torch.nn.functional.linear(x.bfloat16(), weight).float()
        assert torch.equal(linear(x, weight), expected)
    assert not torch.equal(linear(x, weight), expected)


def test_override_ends_with_its_block_and_stays_in_its_thread(cpp: None) -> None:
    seen: list[str] = []
    with pytest.raises(RuntimeError), use_backend("reference"):
        thread = threading.Thread(target=lambda: seen.append(describe().backend))
        thread.start()
        thread.join()
        raise RuntimeError
    assert seen == ["cpp"]
    assert describe().backend == "cpp"


def test_unknown_backend_is_refused() -> None:
    with (
        pytest.raises(KernelInputError, match="unknown kernel backend 'cuda'"),
        use_backend("cuda"),
    ):  # type: ignore[arg-type]
        pass


def test_switch_turns_the_cpp_kernels_off(undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv("DRAFTSMITH_KERNELS", "reference")
    info = describe()
    assert (info.backend, info.row_stable) == ("reference", False)
    assert "DRAFTSMITH_KERNELS" in info.reason
    with pytest.raises(KernelEnvironmentError, match="DRAFTSMITH_KERNELS"), use_backend("cpp"):
        pass


def test_a_switch_that_means_nothing_is_refused(undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv("DRAFTSMITH_KERNELS", "refrence")
    with pytest.raises(KernelInputError, match="DRAFTSMITH_KERNELS is 'refrence'"):
        describe()


def test_missing_compiler_falls_back_and_is_logged_once(
    undecided: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    undecided.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            linear(torch.zeros(1, 4), torch.zeros(2, 4))
    assert describe().backend == "reference"
    assert "no-such-compiler" in describe().reason
    assert len([record for record in caplog.records if "no-such-compiler" in record.message]) == 1


def test_failing_compiler_falls_back_with_its_message(
    undecided: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = '[ "$1" = --version ] && exit 0\necho "lanes.h: no such header" >&2\nexit 4'
    undecided.setenv("CXX", _fake_compiler(tmp_path, body))
    info = describe()
    assert info.backend == "reference"
    assert "code 4" in info.reason
    assert "no such header" in info.reason
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_broken_library_falls_back(undecided: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = 'for last; do :; done\n[ "$last" = --version ] || echo garbage > "$last"'
    undecided.setenv("CXX", _fake_compiler(tmp_path, body))
    info = describe()
    assert info.backend == "reference"
    assert "delete it to build it anew" in info.reason


def test_unwritable_cache_falls_back(undecided: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    undecided.setenv("CXX", _fake_compiler(tmp_path, "exit 0"))
    info = describe()
    assert info.backend == "reference"
    assert "DRAFTSMITH_CACHE" in info.reason


def test_processor_without_avx2_falls_back(undecided: pytest.MonkeyPatch) -> None:
    undecided.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    info = describe()
    assert info.backend == "reference"
    assert "AVX2" in info.reason


def test_processes_that_start_together_build_once(cpp: None, tmp_path: Path) -> None:
    """Two processes on an empty cache both end up with the one whole library."""
    compiler = describe().compiler
    assert compiler is not None
    counted = _fake_compiler(
        tmp_path, f'[ "$1" = --version ] || echo " $* " >> {tmp_path}/builds\nexec {compiler} "$@"'
    )
    environment = os.environ | {"DRAFTSMITH_CACHE": str(tmp_path / "cache"), "CXX": counted}
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", PROBE], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    answers = [json.loads(process.communicate(timeout=240)[0]) for process in processes]
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == "cpp"
    assert [str(path) for path in (tmp_path / "cache").rglob("*.so")] == [answers[0][2]]
    commands = (tmp_path / "builds").read_text().splitlines()
    compiled = [command for command in commands if " -c " in command]
    assert len(compiled) == len(build.SOURCES) and len(commands) == len(compiled) + 1
