"""Numpy form of the counter-based noise: integers and single fp32 operations, identical on every platform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF

# (ln(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2), lowest power first: our least-squares
# fit at 200 Chebyshev points, relative error of ln under 4e-9. The values are exact in fp32.
LOG_COEFFICIENTS = tuple(
    np.float32(float.fromhex(text))
    for text in (
        "0x1.555554p-2 -0x1.fffff2p-3 0x1.999d52p-3 -0x1.555ee0p-3 0x1.23d676p-3"
        " -0x1.fc595cp-4 0x1.ddab32p-4 -0x1.da0514p-4 0x1.24e582p-4"
    ).split()
)
_LN2_HIGH = np.float32(0.693359375)  # 9 bits: exact times any exponent
_LN2_LOW = np.float32(-2.12194440e-4)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_TWO_TO_MINUS_32 = 2.0**-32


def philox_block(counter: tuple[Words, int, int, int], seed: int) -> tuple[Words, ...]:
    """Philox4x32-10: four words a counter. ``counter[0]`` is an array, the others are the same for all."""
    first, *others = counter
    x = [first.astype(np.uint64), *(np.full(first.shape, word, np.uint64) for word in others)]
    low_key, high_key = seed & _MASK, seed >> 32
    mask = np.uint64(_MASK)
    shift = np.uint64(32)
    for _ in range(_ROUNDS):
        left, right = x[0] * _MULTIPLIERS[0], x[2] * _MULTIPLIERS[1]
        x = [
            (right >> shift) ^ x[1] ^ np.uint64(low_key),
            right & mask,
            (left >> shift) ^ x[3] ^ np.uint64(high_key),
            left & mask,
        ]
        low_key, high_key = (low_key + _WEYL[0]) & _MASK, (high_key + _WEYL[1]) & _MASK
    return tuple(word.astype(np.uint32) for word in x)


def philox_words_reference(
    seed: int, position: int, token_ids: npt.NDArray[np.int64], stream: int
) -> Words:
    """The word of each token: counter (id >> 2, position, stream, 0), word id & 3."""
    blocks, inverse = np.unique(token_ids >> 2, return_inverse=True)
    words = np.stack(philox_block((blocks.astype(np.uint32), position, stream, 0), seed), axis=1)
    return words[inverse, token_ids & 3]


def gumbel_of_words(words: Words) -> Floats:
    """-ln(-ln(1 - u)) with u = (word + 1/2) / 2^32; every fp32 operation rounds on its own."""
    exact = words.astype(np.float64) + 0.5
    u = (exact * _TWO_TO_MINUS_32).astype(np.float32)
    rest = ((2.0**32 - exact) * _TWO_TO_MINUS_32).astype(np.float32)  # 1 - u, not rounded from u
    fraction, exponent = _split(rest)
    near_one = exponent == 0  # 1 - u keeps no low digits of u there: f = -u has them all
    exponential = -_log(np.where(near_one, -u, fraction), exponent)
    return -_log(*_split(exponential))


def _split(x: Floats) -> tuple[Floats, npt.NDArray[np.int32]]:
    """(f, e) with x = (1 + f) * 2^e and 1 + f in [sqrt(1/2), sqrt(2)); x positive and normal."""
    bits = x.view(np.int32)
    exponent = (bits - _SQRT_HALF_BITS) >> np.int32(23)
    mantissa = (bits - (exponent << np.int32(23))).view(np.float32)
    return mantissa - np.float32(1), exponent


def _log(fraction: Floats, exponent: npt.NDArray[np.int32]) -> Floats:
    """ln((1 + f) * 2^e)."""
    series = np.full_like(fraction, LOG_COEFFICIENTS[-1])
    for coefficient in LOG_COEFFICIENTS[-2::-1]:
        series = series * fraction + coefficient
    scale = exponent.astype(np.float32)
    square = fraction * fraction
    tail = series * fraction * square + scale * _LN2_LOW
    tail = tail - np.float32(0.5) * square
    return (fraction + tail) + scale * _LN2_HIGH
