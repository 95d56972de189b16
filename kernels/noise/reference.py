"""Numpy form of the counter-based noise: integers and single fp32 operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF

# (ln(1 + f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2), lowest power first: our
# least-squares fit at 200 Chebyshev points, relative error of ln under 4e-9. Exact in fp32.
LOG_COEFFICIENTS = tuple(
    np.float32(float.fromhex(text))
    for text in (
        *("0x1.555554p-2", "-0x1.fffff2p-3", "0x1.999d52p-3", "-0x1.555ee0p-3", "0x1.23d676p-3"),
        *("-0x1.fc595cp-4", "0x1.ddab32p-4", "-0x1.da0514p-4", "0x1.24e582p-4"),
    )
)
_LN2_HIGH = np.float32(0.693359375)  # 9 bits: exact times any exponent
_LN2_LOW = np.float32(-2.12194440e-4)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_TWO_TO_MINUS_32 = 2.0**-32


def philox_block(counter: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Philox4x32-10: the four words of a counter, of plain ints or of uint64 arrays under 2^32."""
    x = counter
    low_key, high_key = seed & _MASK, seed >> 32
    for _ in range(_ROUNDS):
        left, right = x[0] * _MULTIPLIERS[0], x[2] * _MULTIPLIERS[1]
        x = (
            (right >> 32) ^ x[1] ^ low_key,
            right & _MASK,
            (left >> 32) ^ x[3] ^ high_key,
            left & _MASK,
        )
        low_key, high_key = (low_key + _WEYL[0]) & _MASK, (high_key + _WEYL[1]) & _MASK
    return x


def philox_words_reference(
    seed: int, position: int, token_ids: npt.NDArray[np.int64], stream: int
) -> Words:
    """The word of each token: counter (id >> 2, position, stream, 0), word id & 3."""
    if not token_ids.size:
        return np.empty(0, np.uint32)
    first = int(token_ids.min()) >> 2
    count = (int(token_ids.max()) >> 2) - first + 1
    if count <= token_ids.size:  # dense ids, such as a whole vocabulary: each block once
        blocks, index = np.arange(first, first + count), (token_ids >> 2) - first
    else:
        blocks, index = token_ids >> 2, np.arange(token_ids.size)
    x = (
        blocks.astype(np.uint64),
        *(np.full(blocks.shape, w, np.uint64) for w in (position, stream, 0)),
    )
    words = np.stack(philox_block(x, seed), axis=1).astype(np.uint32)
    result: Words = words[index, token_ids & 3]
    return result


def gumbel_of_words(words: Words) -> Floats:
    """-ln(-ln(1 - u)) with u = (word + 1/2) / 2^32; every fp32 operation rounds on its own."""
    exact = words.astype(np.float64) + 0.5
    u = (exact * _TWO_TO_MINUS_32).astype(np.float32)
    rest = ((2.0**32 - exact) * _TWO_TO_MINUS_32).astype(np.float32)  # 1 - u, not rounded from u
    fraction, exponent = _split(rest)
    near_one = exponent == 0  # 1 - u keeps no low digits of u there: f = -u has them all
    exponential = -_log(np.where(near_one, -u, fraction), exponent)
    noise: Floats = -_log(*_split(exponential))
    return noise


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
    result: Floats = (fraction + tail) + scale * _LN2_HIGH
    return result
