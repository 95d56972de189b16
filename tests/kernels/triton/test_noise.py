"""Noise in Triton: the bits of the golden vectors and of the reference, and no fused operation."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.configurations import Configuration, use_configurations
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.launching import triton_problem
from draftsmith.kernels.noise import (
    ACCEPT,
    DRAFT,
    NOISE,
    RESIDUAL,
    cost,
    gumbel_rows,
    gumbel_rows_at,
    philox_words,
)
from tests.support.traffic import count_traffic

# Words and noise bits of token ids 0 .. 7 at seed 12345, position 678: see ../test_noise.py.
ROW_WORDS = [
    *(3353761456, 1854100772, 1283790820, 2097955501),
    *(2282788228, 4173698023, 1984276706, 1109891487),
]
ROW_BITS = [
    *(3201677273, 1058151911, 1065649493, 1053607874),
    *(1049474393, 3215116695, 1056233160, 1067093175),
]
SEEDS, POSITIONS = [12345, 2**64 - 1, 2**63], [678, 2**32 - 1, 5]

ASSEMBLY = """
import json, re
from draftsmith.kernels.launching import Variant
from draftsmith.kernels.noise.triton import variants
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
(variant,) = variants()
constants = {**variant.constants, "BLOCK": 1024}
signature = {n: variant.arguments.get(n, "constexpr") for n in variant.function.arg_names}
found = {}
for fused in (False, True):
    options = {**variant.options, **({"enable_fp_fusion": True} if fused else {})}
    for target in (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("cuda", 100, 32),
                   GPUTarget("hip", "gfx942", 64)):
        made = compile(ASTSource(variant.function, signature, constants), target=target,
                       options=options).asm
        text = made.get("ptx") or made["amdgcn"]
        count = len(re.findall(r"\\bfma\\.|v_(?:pk_)?fma|v_fmac|v_mad_f|v_mac_f", text))
        loose = len(re.findall(r"\\b(?:mul|add|sub)\\.f32", text))
        found[f"{target.arch} {fused}"] = (count, loose)
print(json.dumps(found))
"""


def _int64(numbers: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(numbers, np.uint64).view(np.int64))


@pytest.mark.parametrize("stream", [NOISE, DRAFT, ACCEPT, RESIDUAL])
def test_words_and_noise_have_the_bits_of_the_reference(
    stream: int, triton: None, poisoned_empty: None
) -> None:
    from draftsmith.kernels.noise.triton import noise_rows_triton

    seeds, positions = _int64(SEEDS), _int64(POSITIONS)
    noise = gumbel_rows_at(seeds, positions, 1501, stream)
    words = noise_rows_triton(seeds, positions, 1501, stream, words=True).long() & 0xFFFFFFFF
    with use_backend("reference"):
        wanted = gumbel_rows(SEEDS, POSITIONS, 1501, stream)
        assert torch.equal(noise.view(torch.int32), wanted.view(torch.int32))
        assert torch.equal(gumbel_rows_at(seeds, positions, 1501, stream), wanted)
        for row, (seed, position) in enumerate(zip(SEEDS, POSITIONS, strict=True)):
            assert torch.equal(words[row], philox_words(seed, position, 1501, stream))


def test_golden_vectors_hold(triton: None) -> None:
    from draftsmith.kernels.noise.triton import noise_rows_triton

    seeds, positions = _int64([12345]), _int64([678])
    words = noise_rows_triton(seeds, positions, 8, NOISE, words=True)
    assert words[0].numpy().view(np.uint32).tolist() == ROW_WORDS
    noise = gumbel_rows_at(seeds, positions, 8)
    assert noise[0].numpy().view(np.uint32).tolist() == ROW_BITS


@pytest.mark.parametrize("block", [4, 64])
def test_block_shape_does_not_change_the_bits(block: int, triton: None) -> None:
    seeds, positions = _int64([9]), _int64([3])
    whole = gumbel_rows_at(seeds, positions, 70)
    with use_configurations({"noise": Configuration(blocks={"BLOCK": block})}):
        assert torch.equal(gumbel_rows_at(seeds, positions, 70), whole)


def test_bytes_and_launches_are_those_of_the_formula(triton: None) -> None:
    with count_traffic() as traffic:
        gumbel_rows_at(_int64(SEEDS), _int64(POSITIONS), 1501)
    assert traffic.cost == cost(num_rows=3, vocab_size=1501, block=1024)
    with count_traffic() as traffic:
        assert gumbel_rows_at(_int64([]), _int64([]), 10).shape == (0, 10)
    assert traffic.cost == cost(num_rows=0, vocab_size=10, block=1024)


def test_arguments_that_do_not_fit_are_refused(triton: None) -> None:
    one = _int64([1])
    with pytest.raises(KernelInputError, match="two dense int64"):
        gumbel_rows_at(one, one.int(), 4)
    with pytest.raises(KernelInputError, match="two dense int64"):
        gumbel_rows_at(one, _int64([1, 2]), 4)
    with pytest.raises(KernelInputError, match="vocabulary size -1"):
        gumbel_rows_at(one, one, -1)


def test_no_multiply_and_add_are_fused() -> None:
    """In the assembly of every architecture; without the option they would be."""
    if (problem := triton_problem()) is not None:
        pytest.skip(problem)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASSEMBLY],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 8
    for key, (fused, loose) in found.items():
        if key.endswith("False"):
            assert (fused, loose) == (0, 0), key
        else:
            assert fused > 0, key
