"""Every Triton kernel compiles without a card, for every architecture, and none spills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftsmith.kernels.ahead import Usage, amd_usage, compile_ahead, cuda_usage, variants
from draftsmith.kernels.backend import TRITON_KERNELS
from draftsmith.kernels.configurations import DEFAULT, TABLE
from draftsmith.kernels.device import COMPILED_FOR
from draftsmith.kernels.errors import KernelEnvironmentError
from draftsmith.kernels.launching import triton_problem

SCRIPT = Path(__file__).parents[3] / "scripts" / "aot.py"


@pytest.mark.parametrize("kernel", TRITON_KERNELS)
def test_kernel_compiles_everywhere_without_spills(kernel: str) -> None:
    if (problem := triton_problem()) is not None:
        pytest.skip(problem)
    environment = {**os.environ}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), "--json", "--kernel", kernel],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout, done.stderr
    usages = json.loads(done.stdout)
    assert {usage["architecture"] for usage in usages} == set(COMPILED_FOR)
    labels = [variant.label for variant in variants([kernel])]
    assert len(usages) == len(COMPILED_FOR) * len(labels) and len(set(labels)) == len(labels)
    assert [usage for usage in usages if not Usage(**usage).fits] == []
    assert all(0 < usage["registers"] <= 512 for usage in usages)
    assert done.returncode == 0


def test_each_kernel_has_default_block_shapes() -> None:
    assert {variant.kernel for variant in variants()} == set(TABLE)
    for shapes in TABLE.values():
        assert DEFAULT in shapes
        assert set(shapes) <= {DEFAULT, *COMPILED_FOR}
        assert len({frozenset(shape.blocks) for shape in shapes.values()}) == 1


def test_interpreter_compiles_nothing_and_says_so() -> None:
    variant = next(variants())
    with pytest.raises(KernelEnvironmentError, match="unset TRITON_INTERPRET"):
        compile_ahead(variant, "sm90")


def test_reports_of_the_compilers_are_read() -> None:
    report = " Function k:\n  REG:168 STACK:24 SHARED:1024 LOCAL:0 CONSTANT[0]:392"
    assert cuda_usage(report) == (168, 24)
    notes = "    .sgpr_spill_count: 1\n    .vgpr_count:     256\n    .vgpr_spill_count: 3\n"
    assert amd_usage(notes) == (256, 16)
    with pytest.raises(KernelEnvironmentError, match="has no 'REG"):
        cuda_usage("nothing")
