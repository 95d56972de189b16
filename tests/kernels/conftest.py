"""Fixtures for kernels: the C++ form where it can run, one or several torch threads."""

from collections.abc import Iterator

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.errors import KernelEnvironmentError


@pytest.fixture
def cpp() -> Iterator[None]:
    """Force the C++ kernels; skip, saying why, where they cannot run."""
    try:
        with use_backend("cpp"):
            pass
    except KernelEnvironmentError as error:
        pytest.skip(str(error))
    with use_backend("cpp"):
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    """Give the thread count back after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.empty`` and ``empty_like`` come back full of NaN: unwritten output fails loudly."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
