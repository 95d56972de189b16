"""Philox against Random123's known answers, Gumbel noise against golden bits and probabilities."""

import numpy as np
import pytest
import torch

from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.noise import (
    ACCEPT,
    DRAFT,
    NOISE,
    RESIDUAL,
    gumbel,
    gumbel_rows,
    philox_words,
    uniform,
)
from draftsmith.kernels.noise.reference import gumbel_of_words, philox_block

ONES = 0xFFFFFFFF
# counter, key (low, high), words: philox4x32-10 in Random123's kat_vectors.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
# word -> bits of the fp32 Gumbel noise. Changing one of them changes what every seed generates.
GOLDEN = {
    0: 0x41B6FDA9,
    1: 0x41AE33B3,
    2: 0x41AA1D88,
    255: 0x41851993,
    65536: 0x41317208,
    8388608: 0x40C79859,
    16777217: 0x40B16211,
    1073741824: 0x3F9F79A2,
    1257966796: 0x3F87A2F1,
    2147483647: 0x3EBBA795,
    2147483648: 0x3EBBA795,
    2714937127: 0x80000000,
    2717041620: 0xBAAE9638,
    4278190080: 0xBFDB413F,
    4294967040: 0xC033F236,
    4294967294: 0xC0452B66,
    4294967295: 0xC04851D5,
}
# Words and noise bits of token ids 0 .. 7 at seed 12345, position 678.
ROW_WORDS = [
    *(3353761456, 1854100772, 1283790820, 2097955501),
    *(2282788228, 4173698023, 1984276706, 1109891487),
]
ROW_BITS = [
    *(3201677273, 1058151911, 1065649493, 1053607874),
    *(1049474393, 3215116695, 1056233160, 1067093175),
]


def _bits(noise: torch.Tensor) -> torch.Tensor:
    return noise.view(torch.int32)


def _exact(words: np.ndarray) -> np.ndarray:
    u = (words.astype(np.float64) + 0.5) / 2.0**32
    # 1 - u is exact in double precision; log1p keeps the digits of a small u.
    return -np.log(np.where(u < 0.5, -np.log1p(-u), -np.log(1.0 - u)))


def _distance_from_uniform(numbers: list[float]) -> float:
    """Kolmogorov-Smirnov statistic; 1.95 / sqrt(n) is passed once in 1000."""
    ordered, count = np.sort(numbers), len(numbers)
    steps = np.arange(count + 1) / count
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_random123s_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert philox_block(counter, key[0] | key[1] << 32) == words


def test_words_follow_the_published_layout() -> None:
    """Counter (id >> 2, position, stream, 0), word id & 3: seeds written today stay valid."""
    first = philox_words(0, 0, 4)
    assert first.tolist() == list(KNOWN_ANSWERS[0][2])
    seed, position, token = 0x299F31D0A4093822, 0x85A308D3, 4 * 77 + 2
    block = philox_block((77, position, RESIDUAL, 0), seed)
    ids = torch.tensor([token])
    assert philox_words(seed, position, ids, RESIDUAL).tolist() == [block[2]]
    assert philox_words(12345, 678, 8).tolist() == ROW_WORDS


def test_word_of_a_token_does_not_depend_on_the_ids_asked_with_it(cpp: None) -> None:
    whole = philox_words(5, 9, 1003)
    ids = torch.tensor([1002, 0, 17, 17, 500])
    assert torch.equal(philox_words(5, 9, ids), whole[ids])
    assert torch.equal(philox_words(5, 9, range(6, 900)), whole[6:900])
    assert torch.equal(philox_words(5, 9, range(8, 900)), whole[8:900])
    assert torch.equal(philox_words(5, 9, range(0, 1003, 100)), whole[::100])
    assert torch.equal(gumbel(5, 9, ids), gumbel(5, 9, 1003)[ids])
    assert philox_words(5, 9, 0).tolist() == philox_words(5, 9, torch.empty(0)).tolist() == []


def test_gumbel_has_its_golden_bits() -> None:
    noise = gumbel_of_words(np.array(list(GOLDEN), np.uint32))
    assert noise.view(np.uint32).tolist() == list(GOLDEN.values())
    assert (_bits(gumbel(12345, 678, 8)).numpy().view(np.uint32)).tolist() == ROW_BITS


def test_gumbel_is_within_three_units_of_the_exact_value() -> None:
    generator = np.random.default_rng(0)
    words = np.concatenate(
        [
            generator.integers(0, 2**32, 200_000, dtype=np.uint32),
            np.arange(50_000, dtype=np.uint32),
            ONES - np.arange(50_000, dtype=np.uint32),
        ]
    )
    exact = _exact(words)
    unit = 2.0**-23 * np.maximum(np.abs(exact), 0.5)
    assert (np.abs(gumbel_of_words(words) - exact) <= 3 * unit).all()


def test_noise_never_rises_with_the_word() -> None:
    edges = [0, 1 << 8, 1 << 24, 1 << 30, 1257966797, 1 << 31, 2714937127, 3 << 30, 2**32 - 3000]
    for edge in edges:
        words = np.arange(max(edge - 3000, 0), min(edge + 3000, 2**32), dtype=np.uint64)
        exact = _exact(words)
        noise = gumbel_of_words(words.astype(np.uint32)).astype(np.float64)
        slack = 4 * 2.0**-23 * np.maximum(np.abs(exact[1:]), 0.5)
        assert (np.diff(noise) <= slack).all()


@pytest.mark.parametrize("vocab", [1, 3, 64, 65, 4096, 4097, 49152, 50257])
def test_cpp_noise_has_the_bits_of_the_reference(vocab: int, cpp: None) -> None:
    seeds, positions = [7, 2**64 - 1, 2**63], [0, 2**32 - 1, 5]
    rows = gumbel_rows(seeds, positions, vocab, DRAFT)
    words = philox_words(2**64 - 1, 2**32 - 1, vocab, DRAFT)
    with use_backend("reference"):
        assert torch.equal(_bits(rows), _bits(gumbel_rows(seeds, positions, vocab, DRAFT)))
        assert torch.equal(words, philox_words(2**64 - 1, 2**32 - 1, vocab, DRAFT))


def test_cpp_gumbel_has_its_golden_bits(cpp: None) -> None:
    assert (_bits(gumbel(12345, 678, 8)).numpy().view(np.uint32)).tolist() == ROW_BITS


@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_noise_of_a_row_does_not_depend_on_its_batch(
    backend: str, request: pytest.FixtureRequest, threads: None
) -> None:
    request.getfixturevalue("cpp")
    with use_backend("reference" if backend == "reference" else "cpp"):
        rows = gumbel_rows([1, 2, 3], [10, 11, 12], 9001)
        torch.set_num_threads(1)
        for row in range(3):
            assert torch.equal(rows[row], gumbel(row + 1, row + 10, 9001))
    assert gumbel_rows([], [], 10).shape == (0, 10)


def test_seeds_positions_and_streams_give_different_noise() -> None:
    base = philox_words(1, 1, 400)
    for other in (
        philox_words(2, 1, 400),
        philox_words(1 + 2**32, 1, 400),
        philox_words(1, 2, 400),
        philox_words(1, 1, 400, DRAFT),
        philox_words(1, 1, 400, ACCEPT),
    ):
        assert (base == other).sum() <= 1


def test_argmax_samples_the_distribution() -> None:
    """20,000 positions of 50 tokens: chi-square under its 99.9 % point (49 degrees)."""
    weights = torch.arange(1, 51, dtype=torch.float64) ** -1.2
    p = weights / weights.sum()
    count = 20_000
    noise = gumbel_rows([11] * count, list(range(count)), 50)
    drawn = (p.log().float() + noise).argmax(1)
    observed = torch.bincount(drawn, minlength=50)
    assert ((observed - p * count) ** 2 / (p * count)).sum() < 85.35


def test_flat_tail_wins_its_mass() -> None:
    """A token of 90 % before 40,000 equal ones: the tail's winners come from the smallest words."""
    vocab, count = 40_001, 1000
    logits = torch.full((vocab,), float(np.log(0.1 / (vocab - 1))))
    logits[0] = float(np.log(0.9))
    winners: list[int] = []
    for first in range(0, count, 100):
        noise = gumbel_rows([3] * 100, list(range(first, first + 100)), vocab)
        winners += (noise + logits).argmax(1).tolist()
    tail = [token / vocab for token in winners if token != 0]
    assert abs(len(tail) - 0.1 * count) < 3.3 * (count * 0.1 * 0.9) ** 0.5
    assert _distance_from_uniform(tail) < 1.95 / len(tail) ** 0.5


def test_rare_token_beats_a_sure_one_as_often_as_it_should() -> None:
    """P(G > t) = 1 - exp(-exp(-t)) holds down to single words, where coarse noise has gaps."""
    for k in (1, 2, 5, 40, 1000):
        threshold = -np.log(-np.log1p(-k / 2.0**32))
        below = gumbel_of_words(np.array([k - 1, k], np.uint32))
        assert below[0] > threshold > below[1]


def test_uniforms_are_uniform_and_apart() -> None:
    numbers = [uniform(4, position, index) for position in range(500) for index in range(6)]
    assert all(0.0 < number < 1.0 for number in numbers)
    assert len(set(numbers)) == len(numbers)
    assert _distance_from_uniform(numbers) < 1.95 / len(numbers) ** 0.5
    assert uniform(4, 0, 5) == (philox_words(4, 0, 6, ACCEPT)[5].item() + 0.5) / 2.0**32
    assert uniform(9, 4, 5, RESIDUAL) == pytest.approx(0.607183046056889, abs=1e-15)
    assert uniform(4, 0, 5, NOISE) != uniform(4, 0, 5)


def test_values_outside_the_counter_are_refused() -> None:
    with pytest.raises(KernelInputError, match="seed -1 is outside"):
        gumbel(-1, 0, 4)
    with pytest.raises(KernelInputError, match="seed 18446744073709551616"):
        uniform(2**64, 0)
    with pytest.raises(KernelInputError, match="position 4294967296"):
        philox_words(0, 2**32, 4)
    with pytest.raises(KernelInputError, match="token ids -1 .. 3"):
        gumbel(0, 0, torch.tensor([3, -1]))
    with pytest.raises(KernelInputError, match="vocabulary size -2"):
        gumbel(0, 0, -2)
    with pytest.raises(KernelInputError, match="2 seeds for 1 positions"):
        gumbel_rows([1, 2], [3], 4)
    with pytest.raises(KernelInputError, match="index -1"):
        uniform(0, 0, -1)
    with pytest.raises(KernelInputError, match="stream -1"):
        uniform(0, 0, 0, -1)
