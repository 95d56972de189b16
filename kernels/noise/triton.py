"""Triton form of the counter-based noise: device functions for other kernels, and whole rows.

Kernels that call ``gumbel_of`` must be compiled with ``NO_FUSION``: LLVM then emits multiplies and
adds that round on their own (PTX ``mul.rn`` and ``add.rn``, which ptxas never fuses; no ``v_fma``
on AMD) and the bits are those of ``reference.py``. A test reads the assembly.

Bytes of whole rows: 4 R V written, 16 read by each program. Floor: some 120 integer and fp32
instructions a number; in ``kernels.accept`` the noise is never written.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.launching import Variant, launch

NO_FUSION = {"enable_fp_fusion": False}

# The coefficients of ``reference.LOG_COEFFICIENTS``, highest power first.
_C8: tl.constexpr = tl.constexpr(float.fromhex("0x1.24e582p-4"))
_C7: tl.constexpr = tl.constexpr(float.fromhex("-0x1.da0514p-4"))
_C6: tl.constexpr = tl.constexpr(float.fromhex("0x1.ddab32p-4"))
_C5: tl.constexpr = tl.constexpr(float.fromhex("-0x1.fc595cp-4"))
_C4: tl.constexpr = tl.constexpr(float.fromhex("0x1.23d676p-3"))
_C3: tl.constexpr = tl.constexpr(float.fromhex("-0x1.555ee0p-3"))
_C2: tl.constexpr = tl.constexpr(float.fromhex("0x1.999d52p-3"))
_C1: tl.constexpr = tl.constexpr(float.fromhex("-0x1.fffff2p-3"))
_C0: tl.constexpr = tl.constexpr(float.fromhex("0x1.555554p-2"))
_LN2_HIGH: tl.constexpr = tl.constexpr(0.693359375)
_LN2_LOW: tl.constexpr = tl.constexpr(-2.12194440e-4)
_TWO_TO_MINUS_33: tl.constexpr = tl.constexpr(2.0**-33)

# No Gumbel number of a word is larger (that of word 0 is 22.87).
MAX_GUMBEL: tl.constexpr = tl.constexpr(23.0)


@triton.jit
def philox_words(seed, position, stream, first_block, BLOCK: tl.constexpr):
    """uint32 [BLOCK]: words of token ids 4 * first_block and on; seed and position int64."""
    x0 = (first_block + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    x3 = tl.zeros_like(x0)
    x1 = x3 + position.to(tl.uint32)
    x2 = x3 + stream
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    left_by = tl.full(x0.shape, 0xD2511F53, tl.uint32)
    right_by = tl.full(x0.shape, 0xCD9E8D57, tl.uint32)
    for _ in tl.static_range(10):
        left, left_high = x0 * left_by, tl.umulhi(x0, left_by)
        right, right_high = x2 * right_by, tl.umulhi(x2, right_by)
        x0, x1 = right_high ^ x1 ^ low, right
        x2, x3 = left_high ^ x3 ^ high, left
        low = low + 0x9E3779B9
        high = high + 0xBB67AE85
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (BLOCK,))


@triton.jit
def _split(x):
    """(f, e) with x = (1 + f) * 2^e."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    return (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0, exponent


@triton.jit
def _negative_log(f, exponent):
    """-ln((1 + f) * 2^e)."""
    series = f * _C8 + _C7
    series = series * f + _C6
    series = series * f + _C5
    series = series * f + _C4
    series = series * f + _C3
    series = series * f + _C2
    series = series * f + _C1
    series = series * f + _C0
    scale = exponent.to(tl.float32)
    square = f * f
    tail = series * f * square + scale * _LN2_LOW
    tail = tail - 0.5 * square
    return -1.0 * ((f + tail) + scale * _LN2_HIGH)  # a product keeps the sign of zero


@triton.jit
def gumbel_of(words):
    """Gumbel noise of uint32 words: fp32, bit for bit that of ``reference.gumbel_of_words``."""
    odd = words.to(tl.int64) * 2 + 1  # u = odd / 2^33; integers round once on their way to fp32
    u = odd.to(tl.float32) * _TWO_TO_MINUS_33
    rest = (0x200000000 - odd).to(tl.float32) * _TWO_TO_MINUS_33
    fraction, exponent = _split(rest)
    fraction = tl.where(exponent == 0, -1.0 * u, fraction)
    fraction, exponent = _split(_negative_log(fraction, exponent))
    return _negative_log(fraction, exponent)


@triton.jit
def uniform_of(words):
    """(word + 1/2) / 2^32 in fp64, exact."""
    return (words.to(tl.float64) + 0.5) * (2.0**-32)


@triton.jit
def noise_kernel(
    out_ptr,  # [R, V] fp32, or int32 for the words
    seeds_ptr, positions_ptr,  # [R] int64: bits of the seed, position
    vocab_size, stream,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    seed = tl.load(seeds_ptr + row)
    position = tl.load(positions_ptr + row)
    words = philox_words(seed, position, stream, first // 4, BLOCK)
    ids = first + tl.arange(0, BLOCK)
    out = out_ptr + row * vocab_size + ids
    if WORDS:
        tl.store(out, words.to(tl.int32, bitcast=True), mask=ids < vocab_size)
    else:
        tl.store(out, gumbel_of(words), mask=ids < vocab_size)


def noise_rows_triton(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    vocab_size: int,
    stream: int,
    words: bool = False,
) -> torch.Tensor:
    """``[R, vocab_size]`` fp32 noise, or its words in int32 bits, where ``seeds`` lie."""
    dtype = torch.int32 if words else torch.float32
    out = torch.empty(seeds.shape[0], vocab_size, dtype=dtype, device=seeds.device)
    shape = configuration("noise", architecture_of(seeds.device))
    launch(
        noise_kernel,
        (seeds.shape[0], triton.cdiv(vocab_size, shape.blocks["BLOCK"])),
        dict(
            **dict(out_ptr=out, seeds_ptr=seeds, positions_ptr=positions),
            **dict(vocab_size=vocab_size, stream=stream, WORDS=words),
        ),
        shape,
        **NO_FUSION,
    )
    return out


def variants() -> Iterator[Variant]:
    """Whole rows of noise."""
    yield Variant(
        kernel="noise",
        label="rows",
        function=noise_kernel,
        arguments=dict(
            **dict(out_ptr="*fp32", seeds_ptr="*i64", positions_ptr="*i64"),
            **dict(vocab_size="i32", stream="i32"),
        ),
        constants=dict(WORDS=False),
        options=NO_FUSION,
    )
