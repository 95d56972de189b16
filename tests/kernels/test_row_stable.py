"""What ``describe`` says of each kernel's rows is true of the form that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import draftsmith.kernels
from draftsmith.engine.batch import causal_rows
from draftsmith.kernels.backend import Backend, describe, use_backend
from draftsmith.kernels.draft_head import draft_head
from draftsmith.kernels.errors import KernelEnvironmentError
from draftsmith.kernels.gate import Activation, gate
from draftsmith.kernels.gather_cache import gather_cache
from draftsmith.kernels.linear import linear
from draftsmith.kernels.noise import gumbel_rows
from draftsmith.kernels.norm_rope_cache import HeadNorm, Rotation, norm_rope_cache
from draftsmith.kernels.ragged import ragged_rows
from draftsmith.kernels.rms_norm import add_rms_norm
from draftsmith.kernels.top_k import top_k
from draftsmith.kernels.tree_attention import tree_attention
from tests.support.tinymodels import tiny_decoder

ROWS = 17
DTYPES = (torch.float32, torch.bfloat16)


def linear_keeps_rows() -> bool:
    x = torch.randn(ROWS, 576, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(200, 576, generator=torch.Generator().manual_seed(1))
    return all(
        torch.equal(linear(x, w), torch.cat([linear(x[i : i + 1], w) for i in range(ROWS)]))
        for w in (weight.to(dtype) for dtype in DTYPES)
    )


def attention_keeps_rows() -> bool:
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, ROWS, 4, 64, generator=generator)
    k, v = torch.randn(2, 1, 2, 300, 64, generator=generator)

    def attend(first: int, last: int) -> torch.Tensor:
        return tree_attention(
            *(q[:, first:last], k, v),
            slots=[0],
            lengths=[250],
            widths=[last - first],
            offset=first,
            visible=None,
            scale=0.125,
        )

    alone = torch.cat([attend(i, i + 1) for i in range(ROWS)], dim=1)
    return torch.equal(attend(0, ROWS), alone)


def noise_keeps_rows() -> bool:
    seeds, positions = list(range(ROWS)), list(range(100, 100 + ROWS))
    alone = [gumbel_rows([s], [p], 1000) for s, p in zip(seeds, positions, strict=True)]
    return torch.equal(gumbel_rows(seeds, positions, 1000), torch.cat(alone))


def draft_head_keeps_rows() -> bool:
    x = torch.randn(ROWS, 576, generator=torch.Generator().manual_seed(5))
    weight = torch.randn(600, 576, generator=torch.Generator().manual_seed(6))

    def numbers(rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        top = draft_head(rows, weight.to(dtype), 4, with_log_sum=True)
        assert top.log_sums is not None
        return torch.cat((top.values, top.columns.float(), top.log_sums[:, None]), dim=1)

    return all(
        torch.equal(
            numbers(x, dtype), torch.cat([numbers(x[i : i + 1], dtype) for i in range(ROWS)])
        )
        for dtype in DTYPES
    )


def gather_keeps_rows() -> bool:
    before = torch.randn(2, 1, 2, 20, 8, generator=torch.Generator().manual_seed(3))
    k, v = before.clone(), before.clone()
    gather_cache(k, v, 0, 4, [1, 3, 8])
    wanted = before[:, :, :, [5, 7, 12]]
    return torch.equal(k[:, :, :, 4:7], wanted) and torch.equal(v[:, :, :, 4:7], wanted)


def gate_keeps_rows() -> bool:
    x = 3 * torch.randn(ROWS, 2 * 577, generator=torch.Generator().manual_seed(5))
    kinds: tuple[Activation, ...] = ("silu", "gelu_pytorch_tanh")
    return all(
        torch.equal(gate(x, kind), torch.cat([gate(x[i : i + 1], kind) for i in range(ROWS)]))
        for kind in kinds
    )


def norm_keeps_rows() -> bool:
    x, residual = torch.randn(2, ROWS, 577, generator=torch.Generator().manual_seed(6))
    weight = torch.ones(577)
    together = add_rms_norm(x, residual, weight, 1e-6).normed
    alone = [
        add_rms_norm(x[i : i + 1], residual[i : i + 1], weight, 1e-6).normed for i in range(ROWS)
    ]
    return torch.equal(together, torch.cat(alone))


def cache_write_keeps_rows() -> bool:
    generator = torch.Generator().manual_seed(7)
    qkv = torch.randn(ROWS, 4 * 48, generator=generator)
    norm = HeadNorm(weight=torch.randn(3, 48, generator=generator), eps=1e-6)
    cosine, sine = torch.randn(2, ROWS, 48, generator=generator)

    def write(first: int, last: int) -> torch.Tensor:
        k, v = torch.zeros(2, 1, 1, ROWS, 48)
        rows = ragged_rows(
            *([0], [first], [last - first]), offset=0, visible=None, device=torch.device("cpu")
        )
        rotation = Rotation(cosine=cosine, sine=sine, positions=torch.arange(first, last))
        q = norm_rope_cache(qkv[first:last], k, v, rows, norm=norm, rotation=rotation)
        return torch.cat([q[0].flatten(1), k[0, 0, first:last], v[0, 0, first:last]], dim=1)

    return torch.equal(write(0, ROWS), torch.cat([write(i, i + 1) for i in range(ROWS)]))


def layers_keep_rows() -> bool:
    model = tiny_decoder(hidden=48, intermediate_size=90)
    cache = model.new_cache(num_slots=1, capacity=ROWS)
    together = model.forward(causal_rows(0, range(ROWS), 0), cache).last
    alone = []
    for i in range(ROWS):
        cache.lengths[0] = i
        alone.append(model.forward(causal_rows(0, [i], i), cache).last)
    return torch.equal(together, torch.cat(alone, dim=1))


def top_k_keeps_rows() -> bool:
    values = torch.randn(ROWS, 1000, generator=torch.Generator().manual_seed(4)).round()
    alone = [top_k(values[i : i + 1], 5) for i in range(ROWS)]
    return torch.equal(top_k(values, 5), torch.cat(alone))


KEEPS: dict[str, Callable[[], bool]] = {
    "decoder_layers": layers_keep_rows,
    "gate": gate_keeps_rows,
    "draft_head": draft_head_keeps_rows,
    "gather_cache": gather_keeps_rows,
    "linear": linear_keeps_rows,
    "noise": noise_keeps_rows,
    "norm_rope_cache": cache_write_keeps_rows,
    "rms_norm": norm_keeps_rows,
    "top_k": top_k_keeps_rows,
    "tree_attention": attention_keeps_rows,
}


@pytest.fixture(params=["cpp", "reference"])
def backend(request: pytest.FixtureRequest) -> Backend:
    name: Backend = request.param
    try:
        with use_backend(name):
            return name
    except KernelEnvironmentError as error:
        pytest.skip(str(error))


def test_every_kernel_is_described(backend: Backend) -> None:
    [folder] = draftsmith.kernels.__path__
    with use_backend(backend):
        described = {kernel.name for kernel in describe().kernels}
    assert described == {path.parent.name for path in Path(folder).glob("*/__init__.py")}


@pytest.mark.parametrize("name", KEEPS)
def test_a_kernel_said_to_be_row_stable_is(name: str, backend: Backend) -> None:
    with use_backend(backend):
        [said] = [kernel for kernel in describe().kernels if kernel.name == name]
        assert KEEPS[name]() or not said.row_stable


def test_the_form_that_runs_is_the_one_that_is_named(backend: Backend) -> None:
    folder = Path(draftsmith.kernels.__path__[0])
    with use_backend(backend):
        info = describe()
        for kernel in info.kernels:
            has_cpp = (folder / kernel.name / "cpu.cpp").exists()
            assert kernel.backend == (backend if has_cpp else "reference")
        assert info.row_stable == all(kernel.row_stable for kernel in info.kernels)
        assert info.row_stable == (backend == "cpp")
