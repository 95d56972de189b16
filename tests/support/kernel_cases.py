"""Products, attention and layers over odd shapes: forms of the C++ kernels, bit by bit."""

from __future__ import annotations

import torch

from draftsmith.engine.batch import causal_rows
from draftsmith.kernels.bf12_gemv import commonest, high_byte_counts, pack
from draftsmith.kernels.linear import linear
from draftsmith.kernels.panels import Weight, pack_panels
from draftsmith.kernels.tree_attention import tree_attention
from tests.support.tinymodels import tiny_decoder

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEPTHS = (1, 2, 3, 15, 16, 77, 511, 512, 513, 1027, 1537)
WIDTHS = (1, 15, 16, 17, 50)
ROWS = (*range(1, 20), 31, 33, 49, 64, 127, 200)


def outputs() -> dict[str, torch.Tensor]:
    """What the C++ kernels that run now yield, by case."""
    return {**_products(), **_attention(), **_layers()}


def differing(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[str]:
    """The cases that are not equal bit by bit. A NaN equals any NaN: which of two that meet is
    kept is the compiler's choice.
    """
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(_bits(left[name]), _bits(right[name]))]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor.isnan(), torch.nan, tensor).view(torch.int32)


def _weights(dense: torch.Tensor) -> dict[str, Weight]:
    forms: dict[str, Weight] = {"dense": dense, "panels": pack_panels(dense)}
    if dense.dtype == torch.bfloat16:
        forms["bf12"] = pack(dense, commonest(high_byte_counts(dense))[0])
    return forms


def _products() -> dict[str, torch.Tensor]:
    found = {}
    generator = torch.Generator().manual_seed(0)
    for depth in DEPTHS:
        x = torch.randn(max(ROWS), depth, generator=generator)
        for width in WIDTHS:
            numbers = torch.randn(width, depth, generator=generator)
            bias = torch.randn(width, generator=generator)
            for dtype in DTYPES:
                for form, weight in _weights(numbers.to(dtype)).items():
                    products = [linear(x[:rows], weight, bias) for rows in ROWS]
                    found[f"{form} {dtype} [{width}, {depth}]"] = torch.cat(products)
    any_bits = torch.randint(-(1 << 15), 1 << 15, (33, 201), generator=generator)
    for form, weight in _weights(any_bits.to(torch.int16).view(torch.bfloat16)).items():
        x = torch.randn(9, 201, generator=generator)
        found[f"{form} of any bits"] = linear(x, weight)
    return found


def _attention() -> dict[str, torch.Tensor]:
    found = {}
    generator = torch.Generator().manual_seed(1)
    for dtype in DTYPES:
        for head_dim in (5, 20, 64):
            q = torch.randn(1, 6, 8, head_dim, generator=generator)
            k, v = torch.randn(2, 1, 2, 90, head_dim, generator=generator).to(dtype)
            found[f"attention {dtype} {head_dim}"] = tree_attention(
                *(q, k, v),
                slots=[0],
                lengths=[71],
                widths=[6],
                offset=2,
                visible=None,
                scale=0.2,
                softcap=3.0,
            )
    return found


def _layers() -> dict[str, torch.Tensor]:
    found = {}
    for dtype in DTYPES:
        for family in ("llama", "gemma2"):
            model = tiny_decoder(hidden=48, intermediate_size=90, family=family, dtype=dtype)
            for rows in (1, 7, 40):
                cache = model.new_cache(num_slots=1, capacity=rows)
                hidden = model.forward(causal_rows(0, range(rows), 0), cache).last
                found[f"layers of {family} {dtype}, {rows} rows"] = hidden
    return found
