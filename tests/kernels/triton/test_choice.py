"""When the Triton forms run, and what is said where they cannot."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from draftsmith.kernels import backend, launching
from draftsmith.kernels.backend import TRITON_KERNELS, describe, form_for, use_backend
from draftsmith.kernels.configurations import (
    TABLE,
    Configuration,
    configuration,
    use_configurations,
)
from draftsmith.kernels.cost import count_launches
from draftsmith.kernels.device import cuda_problem, rocm_problem
from draftsmith.kernels.errors import KernelEnvironmentError, KernelInputError
from draftsmith.kernels.gather_cache import gather_cache
from draftsmith.kernels.linear import linear

WITHOUT_TRITON = """
import importlib, pkgutil, sys
sys.modules["triton"] = None  # importing it fails
import draftsmith.kernels
for module in pkgutil.walk_packages(draftsmith.kernels.__path__, "draftsmith.kernels."):
    if not module.name.endswith(".triton"):
        importlib.import_module(module.name)
print("imported")
"""


class _OnCard:
    """A tensor as the choice sees it: where it lies."""

    is_cpu = False
    device = torch.device("cuda", 0)


CARD: torch.Tensor = _OnCard()  # type: ignore[assignment]


def test_kernels_import_without_triton() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_TRITON], capture_output=True, text=True, check=False
    )
    assert done.stdout == "imported\n", done.stderr


def test_cpu_tensors_take_no_triton_unless_forced(triton: None) -> None:
    here = torch.zeros(1)
    assert form_for("gather_cache", here) == "triton"
    with use_backend("reference"):
        assert form_for("gather_cache", here) == "reference"
    caches = torch.zeros(2, 1, 1, 1, 8, 4)
    with count_launches() as launches:
        gather_cache(*caches, 0, 0, [1])
        with use_backend("reference"):
            gather_cache(*caches, 0, 0, [1])
    assert launches.by_function == {"gather_kernel": 1}


def test_tensors_on_a_card_take_triton_unless_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert form_for("gather_cache", CARD) == "triton"
    assert form_for("top_k", CARD) == "reference"
    with use_backend("reference"):
        assert form_for("gather_cache", CARD) == "reference"
    monkeypatch.setattr(backend, "_switched_off", lambda: True)
    assert form_for("gather_cache", CARD) == "reference"


def test_missing_triton_is_said_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "triton_problem", lambda: "Triton is not installed; run pip")
    with pytest.raises(KernelEnvironmentError, match="DRAFTSMITH_KERNELS=reference"):
        form_for("gather_cache", CARD)
    with pytest.raises(KernelEnvironmentError, match="not installed"), use_backend("triton"):
        pass


def test_compiled_triton_refuses_tensors_on_the_cpu(
    triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "interpreting", lambda: False)
    with pytest.raises(KernelEnvironmentError, match="set TRITON_INTERPRET=1"):
        form_for("gather_cache", torch.zeros(1))


def test_kernels_without_a_triton_form_run_their_reference(triton: None) -> None:
    kernels = {kernel.name: kernel for kernel in describe().kernels}
    for name, kernel in kernels.items():
        assert kernel.backend == ("triton" if name in TRITON_KERNELS else "reference")
    assert form_for("top_k", torch.zeros(1)) == "reference"
    assert backend.library() is None


def test_block_shapes_come_from_the_table_or_the_block() -> None:
    kernel = "gather_cache"
    assert configuration(kernel, "gfx000") == TABLE[kernel]["default"]
    other = Configuration(num_warps=8, num_stages=1)
    with use_configurations({kernel: other}):
        assert configuration(kernel, "sm90") == other
    assert configuration(kernel, "gfx000") == TABLE[kernel]["default"]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"gather": Configuration()}, "no kernel 'gather'"),
        (
            {"gather_cache": Configuration(blocks={"BLOCK": 16})},
            r"\['BLOCK'\]; \[\] are needed",
        ),
        ({"gather_cache": Configuration(num_warps=3)}, "num_warps of gather_cache is 3"),
        ({"gather_cache": Configuration(num_stages=0)}, "num_stages of gather_cache is 0"),
    ],
)
def test_block_shapes_that_do_not_fit_are_refused(
    shapes: dict[str, Configuration], message: str
) -> None:
    with pytest.raises(KernelInputError, match=message), use_configurations(shapes):
        pass


def test_cards_that_the_kernels_do_not_run_on_are_named() -> None:
    assert cuda_problem("A100", (8, 0)) is None
    assert cuda_problem("B200", (10, 0)) is None
    assert "T4 has compute capability 7.5, 8.0 or higher" in str(cuda_problem("T4", (7, 5)))
    assert rocm_problem("MI300X", "gfx942") is None
    assert "Radeon is gfx1100; the kernels are made for" in str(rocm_problem("Radeon", "gfx1100"))


def test_installed_triton_has_no_problem() -> None:
    launching.triton_problem.cache_clear()
    problem = launching.triton_problem()
    assert problem is None or "pip install triton" in problem
    assert linear(torch.ones(1, 2), torch.ones(1, 2)).item() == 2
