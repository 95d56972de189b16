"""Fixtures for kernels: one or several torch threads, and poisoned memory."""

from collections.abc import Iterator

import pytest
import torch


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
