"""Who is told that plain torch runs in place of the C++ kernels, and what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftsmith.kernels import backend
from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.notice import slower_note

CPU = torch.device("cpu")


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process that has not chosen its kernels yet."""
    backend._decide.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    backend._decide.cache_clear()


def test_nothing_is_said_where_the_cpp_kernels_run(cpp: None) -> None:
    assert slower_note(CPU) == ""


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
