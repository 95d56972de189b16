"""Counter-based noise: the same number for the same (seed, position, token id), everywhere.

Words: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
(SC 2011), counter (token_id >> 2, position, stream, 0), key (low, high half of the 64-bit seed); a
token's word is number token_id & 3 of its block.

Gumbel: u = (word + 1/2) / 2^32, E = -ln(1 - u), G = -ln(E), so argmax(log p + G) samples p. Small
u, the winning side, keeps all its digits down to 2^-33: a token of probability 1e-9 wins as often
as it should. Both logarithms are one fixed sequence of single fp32 multiplies and adds, each
rounded on its own (no library logarithm, no contraction), so the bits are the same on every
platform; golden vectors hold them.

Why C++: torch and numpy make some 100 passes over the row, ``cpu.cpp`` one; its bits are the
reference's (tolerance: none). ``noisy_argmax`` draws even less: no noise exceeds that of the
smallest u, so only scores near enough to the best sum so far are looked at, and of their words only
those below exp(score - best sum) 2^32. Results are CPU tensors, but for those of
``gumbel_rows_at``, which draws where its arguments lie (``triton.py``: the same bits).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np
import torch

from draftsmith.kernels.backend import form_for, library
from draftsmith.kernels.cost import Cost
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.noise.reference import (
    gumbel_of_words,
    philox_block,
    philox_words_reference,
)

NOISE, DRAFT, ACCEPT, RESIDUAL = 0, 1, 2, 3  # streams: independent noise for the same position

TokenIds = int | range | torch.Tensor


def philox_words(
    seed: int, position: int, token_ids: TokenIds, stream: int = NOISE
) -> torch.Tensor:
    """Words of ``token_ids`` (``[N]`` tensor or range; V means ``range(V)``): ``[N]`` int64."""
    _check(seed, position, stream)
    return torch.from_numpy(_words(seed, position, token_ids, stream).astype(np.int64))


def gumbel(seed: int, position: int, token_ids: TokenIds, stream: int = NOISE) -> torch.Tensor:
    """Gumbel noise of ``token_ids`` (as in ``philox_words``) as ``[N]`` fp32."""
    if isinstance(token_ids, int):
        return gumbel_rows([seed], [position], token_ids, stream)[0]
    _check(seed, position, stream)
    return torch.from_numpy(gumbel_of_words(_words(seed, position, token_ids, stream)))


def gumbel_rows(
    seeds: Sequence[int], positions: Sequence[int], vocab_size: int, stream: int = NOISE
) -> torch.Tensor:
    """``[R, vocab_size]`` fp32; row r is ``gumbel(seeds[r], positions[r], vocab_size, stream)``."""
    if len(seeds) != len(positions):
        raise KernelInputError(f"{len(seeds)} seeds for {len(positions)} positions")
    for seed, position in zip(seeds, positions, strict=True):
        _check(seed, position, stream)
    _ids(vocab_size)
    native = library()
    num_rows = len(seeds)
    out = torch.empty(num_rows, vocab_size, dtype=torch.float32)
    if native is None:
        for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
            out[row] = torch.from_numpy(gumbel_of_words(_words(seed, position, vocab_size, stream)))
        return out
    native.draftsmith_gumbel_rows(
        *((ctypes.c_uint64 * num_rows)(*seeds), (ctypes.c_uint32 * num_rows)(*positions)),
        *(num_rows, vocab_size, stream, out.data_ptr(), torch.get_num_threads()),
    )
    return out


def gumbel_rows_at(
    seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int, stream: int = NOISE
) -> torch.Tensor:
    """``gumbel_rows`` on the device of ``seeds`` (as bits) and ``positions``: int64 ``[R]``.
    Their values are not checked: the host does not know them.
    """
    if seeds.dtype != torch.int64 or seeds.dim() != 1 or not _alike(seeds, positions):
        raise KernelInputError(
            f"seeds are {seeds.dtype} {tuple(seeds.shape)} on {seeds.device}, positions"
            f" {positions.dtype} {tuple(positions.shape)} on {positions.device}; two dense int64"
            " [R] on one device are needed"
        )
    _ids(vocab_size)
    if form_for("noise", seeds) == "triton":
        from draftsmith.kernels.noise.triton import noise_rows_triton

        return noise_rows_triton(seeds, positions, vocab_size, stream)
    unsigned = [seed % 2**64 for seed in seeds.tolist()]
    return gumbel_rows(unsigned, positions.tolist(), vocab_size, stream).to(seeds.device)


def _alike(seeds: torch.Tensor, positions: torch.Tensor) -> bool:
    same = seeds.shape == positions.shape and seeds.device == positions.device
    dense = seeds.is_contiguous() and positions.is_contiguous()
    return same and dense and positions.dtype == seeds.dtype


def cost(*, num_rows: int, vocab_size: int, block: int) -> Cost:
    """Of ``gumbel_rows_at`` in Triton with ``block`` numbers a program."""
    programs = num_rows * -(-vocab_size // block)
    launches = int(programs > 0)
    return Cost(
        bytes_read=16 * programs, bytes_written=4 * num_rows * vocab_size, launches=launches
    )


def noisy_argmax(values: torch.Tensor, seed: int, position: int) -> int:
    """Arg-max of ``values + gumbel(seed, position, V)`` for fp32 ``values`` ``[V]`` on the CPU, the
    lowest column at ties: the column that the full draw gives. -1 where that leaves nothing to
    choose: NaN among the values, or all of them minus infinity.
    """
    _check(seed, position, NOISE)
    if values.dim() != 1 or values.dtype != torch.float32 or not values.is_cpu:
        raise KernelInputError(
            f"values are {values.dtype} {tuple(values.shape)} on {values.device}; fp32 [V] on the"
            " CPU is needed"
        )
    size = values.numel()
    if not 1 <= size <= 2**34:
        raise KernelInputError(f"values have {size} numbers; 1 to 2^34 are needed")
    native = library()
    if native is None:
        sums = values + gumbel(seed, position, size)
        best = int(sums.argmax())
        return best if float(sums[best]) > -math.inf else -1
    values = values.contiguous()
    winner = ctypes.c_int64()
    native.draftsmith_noisy_argmax(
        values.data_ptr(), size, seed, position, ctypes.addressof(winner)
    )
    return winner.value


def uniform(seed: int, position: int, index: int = 0, stream: int = ACCEPT) -> float:
    """One number in (0, 1), (word + 1/2) / 2^32 of number ``index``, exact in double precision."""
    _check(seed, position, stream)
    if not 0 <= index < 2**34:
        raise KernelInputError(f"index {index} is outside 0 .. 2^34 - 1")
    block = philox_block((index >> 2, position, stream, 0), seed)
    return (int(block[index & 3]) + 0.5) * 2.0**-32


def _words(
    seed: int, position: int, token_ids: TokenIds, stream: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    ids = _ids(token_ids)
    native = library()
    if native is None or not isinstance(ids, range) or ids.step != 1 or ids.start % 4:
        return philox_words_reference(seed, position, np.asarray(ids, np.int64), stream)
    words = np.empty(len(ids), np.uint32)
    native.draftsmith_philox(seed, position, stream, ids.start, len(ids), words.ctypes.data)
    return words


def _ids(token_ids: TokenIds) -> range | np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    ids: range | np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    if isinstance(token_ids, torch.Tensor):
        ids = token_ids.to("cpu", torch.int64).numpy()
        if ids.ndim != 1:
            raise KernelInputError(f"token_ids has {ids.ndim} dimensions; one is needed")
        low, high = (int(ids.min()), int(ids.max())) if ids.size else (0, 0)
    else:
        ids = range(token_ids) if isinstance(token_ids, int) else token_ids
        low, high = (min(ids[0], ids[-1]), max(ids[0], ids[-1])) if ids else (0, 0)
        if isinstance(token_ids, int) and token_ids < 0:
            raise KernelInputError(f"vocabulary size {token_ids} is negative")
    if low < 0 or high >= 2**34:
        raise KernelInputError(f"token ids {low} .. {high} are outside 0 .. 2^34 - 1")
    return ids


def _check(seed: int, position: int, stream: int) -> None:
    if not 0 <= seed < 2**64:
        raise KernelInputError(f"seed {seed} is outside 0 .. 2^64 - 1")
    if not 0 <= position < 2**32:
        raise KernelInputError(f"position {position} is outside 0 .. 2^32 - 1")
    if not 0 <= stream < 2**32:
        raise KernelInputError(f"stream {stream} is outside 0 .. 2^32 - 1")


__all__ = [
    "ACCEPT",
    "DRAFT",
    "NOISE",
    "RESIDUAL",
    "cost",
    "gumbel",
    "gumbel_rows",
    "gumbel_rows_at",
    "noisy_argmax",
    "philox_words",
    "uniform",
]
