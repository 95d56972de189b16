"""Every test here runs the Triton forms, in the interpreter on CPU tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.launching import interpreting, triton_problem
from tests.support.interpreter import computing_as_cards


@pytest.fixture
def triton() -> Iterator[None]:
    """Force the Triton forms; skip, saying why, where they cannot run."""
    problem = triton_problem()
    if problem is not None:
        pytest.skip(problem)
    if not interpreting():
        pytest.skip("Triton compiles here (TRITON_INTERPRET=0): CPU tensors need its interpreter")
    with use_backend("triton"), computing_as_cards():
        yield
