"""12-bit weights: every bit comes back, and products have the bits of the plain weight's."""

import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.bf12_gemv import Bf12Weight, commonest, high_byte_counts, pack
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.linear import linear

SHAPES = [(1, 1), (4, 16), (16, 15), (17, 123), (96, 576), (64, 1536), (200, 33)]
SPECIAL = [0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F7F, 0x0080]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16)


def from_bits(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.int16).view(torch.bfloat16)


def gaussian(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def hostile(n: int, k: int, seed: int = 0) -> torch.Tensor:
    """Any sixteen bits at all, NaN and infinity and subnormals among them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 1 << 16, (n, k), generator=generator)
    flat = values.view(-1)
    flat[: len(SPECIAL)] = torch.tensor(SPECIAL)[: len(flat)]
    return from_bits(values)


def packed(weight: torch.Tensor) -> Bf12Weight:
    return pack(weight, commonest(high_byte_counts(weight))[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("make", [gaussian, hostile])
def test_every_bit_comes_back(shape: tuple[int, int], make, cpp: None) -> None:  # type: ignore[no-untyped-def]
    weight = make(*shape)
    found = packed(weight)
    assert torch.equal(bits(found.unpack()), bits(weight))
    index = torch.randint(0, shape[0], (7,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(bits(found.rows(index)), bits(weight[index]))
    assert found.rows(index[:0]).shape == (0, shape[1])


def test_a_thousand_tensors_of_any_bits_come_back(cpp: None) -> None:
    """Each with its own range of exponents, from all equal to all of them."""
    generator = torch.Generator().manual_seed(3)
    for seed in range(1000):
        low, spread = (int(torch.randint(0, 256, (), generator=generator)) for _ in range(2))
        exponent = low + torch.randint(0, spread + 1, (8, 33), generator=generator)
        rest = torch.randint(0, 256, (8, 33), generator=generator)
        weight = from_bits(((rest & 0x80) << 8) | (exponent.clamp(0, 255) << 7) | (rest & 0x7F))
        highs = torch.randperm(256, generator=generator)[:16].sort().values.to(torch.uint8)
        for found in (packed(weight), pack(weight, highs)):
            assert torch.equal(bits(found.unpack()), bits(weight)), (seed, found.highs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("make", [gaussian, hostile])
def test_the_reference_packs_the_same(shape: tuple[int, int], make, cpp: None) -> None:  # type: ignore[no-untyped-def]
    weight = make(*shape)
    native, counts = packed(weight), high_byte_counts(weight)
    with use_backend("reference"):
        assert torch.equal(high_byte_counts(weight), counts)
        plain = packed(weight)
    for name in ("highs", "units", "starts", "places", "values"):
        assert torch.equal(getattr(plain, name), getattr(native, name)), name


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 33])
@pytest.mark.parametrize("many", [False, True], ids=["few escapes", "many escapes"])
@pytest.mark.parametrize("shape", [(96, 576), (64, 1536), (17, 123), (200, 33), (5, 1025)], ids=str)
def test_products_have_the_bits_of_the_plain_weight(
    rows: int, many: bool, shape: tuple[int, int], cpp: None, threads: None, poisoned_empty: None
) -> None:
    weight = gaussian(*shape)
    found = pack(weight, torch.arange(16, dtype=torch.uint8) + 50) if many else packed(weight)
    assert (found.escape_share > 0.2) == many
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, shape[1], generator=generator)
    bias = torch.randn(shape[0], generator=generator)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert torch.equal(linear(x, found, bias), linear(x, weight, bias))
        assert torch.equal(linear(x, found), linear(x, weight))


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_hostile_weights_give_the_same_products_or_the_same_nan(rows: int, cpp: None) -> None:
    weight, x = hostile(64, 123), torch.randn(rows, 123)
    assert torch.allclose(
        *(linear(x, w) for w in (packed(weight), weight)), rtol=0.0, atol=0.0, equal_nan=True
    )


def test_the_reference_product_unpacks() -> None:
    weight, x = gaussian(8, 24), torch.randn(3, 24)
    with use_backend("reference"):
        assert torch.equal(linear(x, packed(weight)), linear(x, weight))


def test_what_it_saves_and_what_it_leaves_out() -> None:
    weight = gaussian(512, 576)
    highs, share = commonest(high_byte_counts(weight))
    found = pack(weight, highs)
    assert found.escape_share == pytest.approx(share) and share < 1e-3
    assert found.num_bytes < 0.76 * weight.numel() * 2
    assert (found.shape, found.dtype) == ((512, 576), torch.bfloat16)


@pytest.mark.parametrize(
    ("weight", "word"),
    [
        (torch.zeros(8, 16), "float32"),
        (torch.zeros(16, 8, dtype=torch.bfloat16).T, "strides"),
        (torch.zeros(16, dtype=torch.bfloat16), r"\[N, K\]"),
    ],
)
def test_what_cannot_be_packed_is_refused(weight: torch.Tensor, word: str) -> None:
    with pytest.raises(KernelInputError, match=word):
        pack(weight, torch.arange(16, dtype=torch.uint8))


@pytest.mark.parametrize(
    "highs",
    [
        torch.arange(15, dtype=torch.uint8),
        torch.arange(16, dtype=torch.int64),
        torch.tensor([3] * 16, dtype=torch.uint8),
        torch.arange(32, dtype=torch.uint8)[::2],
    ],
    ids=["fifteen", "int64", "not ascending", "not dense"],
)
def test_other_tables_are_refused(highs: torch.Tensor) -> None:
    with pytest.raises(KernelInputError, match="sixteen ascending|dense"):
        pack(gaussian(4, 16), highs)


def test_exact_zeros_have_a_code() -> None:
    """As in weights that were quantised once: SmolLM2's embedding holds one per cent of them."""
    weight = gaussian(8, 64)
    weight[:, ::7] = 0.0
    assert packed(weight).escape_share < 1e-2 < (weight == 0).float().mean()
