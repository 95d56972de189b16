"""12-bit weights for devices: every bit comes back, whatever the exponents."""

import pytest
import torch

from draftsmith.kernels.bf12_gemv import MAX_ESCAPES
from draftsmith.kernels.bf12_gemv.window import (
    WindowWeight,
    best_window,
    exponent_counts,
    pack_window,
)
from draftsmith.kernels.errors import KernelInputError

SPECIAL = [0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F7F, 0x0080]


def from_bits(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.int16).view(torch.bfloat16)


def comes_back(weight: torch.Tensor, base: int) -> WindowWeight:
    packed = pack_window(weight, base)
    assert torch.equal(packed.unpack().view(torch.int16), weight.view(torch.int16))
    return packed


@pytest.mark.parametrize("shape", [(1, 1), (16, 15), (17, 123), (3, 576), (5, 1025)], ids=str)
def test_every_bit_comes_back(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    gaussian = torch.randn(shape, generator=generator).to(torch.bfloat16)
    hostile = from_bits(torch.randint(0, 1 << 16, shape, generator=generator))
    hostile.view(torch.int16).view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL).to(torch.int16)[
        : hostile.numel()
    ]
    for weight in (gaussian, hostile):
        packed = comes_back(weight, best_window(exponent_counts(weight))[0])
        index = torch.randint(0, shape[0], (7,), generator=generator)
        rows = packed.rows(index)
        assert torch.equal(rows.view(torch.int16), weight[index].view(torch.int16))
        assert packed.rows(index[:0]).shape == (0, shape[1])


def test_a_thousand_tensors_of_any_bits_come_back() -> None:
    """Each with its own range of exponents, from all equal to all of them, and any window."""
    generator = torch.Generator().manual_seed(3)
    for seed in range(1000):
        low, spread = (int(torch.randint(0, 256, (), generator=generator)) for _ in range(2))
        exponent = low + torch.randint(0, spread + 1, (4, 33), generator=generator)
        rest = torch.randint(0, 256, (4, 33), generator=generator)
        weight = from_bits(((rest & 0x80) << 8) | (exponent.clamp(0, 255) << 7) | (rest & 0x7F))
        base, share = best_window(exponent_counts(weight))
        assert comes_back(weight, base).escape_share == pytest.approx(share), seed
        comes_back(weight, seed % 242)


def test_a_group_may_be_all_escapes() -> None:
    """256 of them in a row: the largest is counted by a whole byte."""
    assert comes_back(torch.ones(2, 600, dtype=torch.bfloat16), 0).escape_share == 1.0


def test_zeros_and_subnormals_are_no_escapes() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    weight[:, ::7] = 0.0
    weight[:, 1::7] = -0.0
    weight[0, 2::7] = from_bits(torch.tensor(0x0001))
    base, share = best_window(exponent_counts(weight))
    assert share < MAX_ESCAPES
    assert comes_back(weight, base).escape_share == pytest.approx(share)


def test_best_window_is_that_of_a_search() -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(20):
        counts = torch.randint(0, 50, (256,), generator=generator)
        kept = [int(counts[0] + counts[base + 1 : base + 15].sum()) for base in range(242)]
        base, share = best_window(counts)
        covered = int(counts[0] + counts[max(1, base + 1) : base + 15].sum())
        assert covered == max(kept) and share == pytest.approx(1 - max(kept) / int(counts.sum()))


def test_what_it_saves() -> None:
    weight = torch.randn(64, 576, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    base, share = best_window(exponent_counts(weight))
    packed = pack_window(weight, base)
    assert share < 1e-3 and packed.num_bytes < 0.78 * 2 * weight.numel()
    assert (packed.shape, packed.device.type, packed.base) == ((64, 576), "cpu", base)


def test_every_matrix_of_smollm2_comes_back(smollm2_path) -> None:  # type: ignore[no-untyped-def]
    """The largest of each shape; `benchmarks/packing.py` packs them all."""
    from safetensors import safe_open

    seen: set[tuple[int, ...]] = set()
    with safe_open(smollm2_path / "model.safetensors", framework="pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118
            shape = tuple(tensors.get_slice(name).get_shape())
            if len(shape) != 2 or shape in seen:
                continue
            seen.add(shape)
            weight = tensors.get_tensor(name)[:4096].contiguous()
            base, share = best_window(exponent_counts(weight))
            assert share <= MAX_ESCAPES
            assert comes_back(weight, base).num_bytes <= 0.78 * 2 * weight.numel()
    assert len(seen) >= 4


@pytest.mark.parametrize(
    ("weight", "base", "word"),
    [
        (torch.zeros(8, 16), 0, "float32"),
        (torch.zeros(16, 8, dtype=torch.bfloat16).T, 0, "strides"),
        (torch.zeros(16, dtype=torch.bfloat16), 0, r"\[N, K\]"),
        (torch.zeros(2, 2, dtype=torch.bfloat16), 242, "base is 242"),
    ],
)
def test_what_cannot_be_packed_is_refused(weight: torch.Tensor, base: int, word: str) -> None:
    with pytest.raises(KernelInputError, match=word):
        pack_window(weight, base)
