"""Who is told that the CPU kernels run in a slower form, and what."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from draftsmith.kernels import backend
from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.forms import FORMS, Form
from draftsmith.kernels.notice import slower_note

CPU = torch.device("cpu")
AVX512, AVX2 = FORMS


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process that has not chosen its kernels yet."""
    backend._decide.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    backend._decide.cache_clear()


def run_as(monkeypatch: pytest.MonkeyPatch, form: Form, left_out: str = "") -> None:
    """Let the process believe that ``form`` runs on a processor with AVX-512."""
    native = backend._Native(ctypes.CDLL(None), "found", form, left_out=left_out)
    monkeypatch.setattr(backend, "_native", lambda: native)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


def test_nothing_is_said_where_the_best_form_runs(undecided: pytest.MonkeyPatch) -> None:
    run_as(undecided, AVX512)
    undecided.delenv("DRAFTSMITH_KERNELS", raising=False)
    assert slower_note(CPU) == ""
    undecided.setenv("DRAFTSMITH_KERNELS", "avx512")
    assert slower_note(CPU) == ""


def test_a_lesser_form_that_was_asked_for_is_named(undecided: pytest.MonkeyPatch) -> None:
    run_as(undecided, AVX2)
    undecided.setenv("DRAFTSMITH_KERNELS", "avx2")
    note = slower_note(CPU)
    assert "slower form: DRAFTSMITH_KERNELS is 'avx2', the processor has AVX-512; unset" in note


def test_a_better_form_that_cannot_be_built_is_named(undecided: pytest.MonkeyPatch) -> None:
    run_as(undecided, AVX2, left_out="AVX-512 is left out: c++ failed:\n  unknown option")
    undecided.delenv("DRAFTSMITH_KERNELS", raising=False)
    note = slower_note(CPU)
    assert "slower form: AVX-512 is left out: c++ failed: unknown option; draftsmith" in note


def test_nothing_is_said_of_other_devices() -> None:
    with use_backend("reference"):
        assert slower_note(torch.device("cuda")) == ""
        assert slower_note(CPU) != ""


def test_a_switch_is_named_with_its_fix(undecided: pytest.MonkeyPatch) -> None:
    undecided.setenv("DRAFTSMITH_KERNELS", "reference")
    note = slower_note(CPU)
    assert "slower: switched off by DRAFTSMITH_KERNELS=reference; unset it" in note


def test_a_compilers_message_becomes_one_line(undecided: pytest.MonkeyPatch) -> None:
    message = "c++ failed with code 1:\n  first\n  second"
    undecided.delenv("DRAFTSMITH_KERNELS", raising=False)
    undecided.setattr(backend, "_native", lambda: backend._Native(None, message))
    note = slower_note(CPU)
    assert "slower: c++ failed with code 1: first second; draftsmith doctor" in note
