"""Triton form of the best tokens of a head: one launch, the logits stay in registers.

Grid (spans of the head, sixteens of rows). A program makes ``BLOCK_N`` logits of sixteen rows at a
time, keeps the best of its span and the sum of its exponentials; the program that arrives last puts
the spans together. A logit and its column are one 64-bit key, so equal logits need no second look:
the larger key is the larger logit, then the lower column. Spans depend on the size of the head
alone, so a row's bits do not depend on the rows beside it.

Products are of the types that ``linear/triton.py`` multiplies: fp32 where x is fp32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from draftsmith.kernels.configurations import configuration
from draftsmith.kernels.device import architecture_of
from draftsmith.kernels.draft_head.cost import span_of
from draftsmith.kernels.launching import TYPES, Variant, interpreting, launch

_NONE: tl.constexpr = tl.constexpr(-(2**63))
_ROWS: tl.constexpr = tl.constexpr(16)


@triton.jit
def _keys(logits, column):
    """int64 keys in the order of (logit, lower column); NaN above all, both zeros alike."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    bits = tl.where(logits != logits, 0x7FFFFFFF, bits)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _logits_of(keys):
    ordered = (keys >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _merged(best, keys, count, COUNT: tl.constexpr):
    """The ``count`` largest of best [COUNT, 16] and keys [N, 16], largest first."""
    rank = tl.arange(0, COUNT)[:, None]
    merged = tl.full((COUNT, _ROWS), _NONE, tl.int64)
    for i in range(count):
        top = tl.maximum(tl.max(best, 0), tl.max(keys, 0))[None, :]
        best = tl.where(best == top, _NONE, best)
        keys = tl.where(keys == top, _NONE, keys)
        merged = tl.where(rank == i, top, merged)
    return merged


@triton.jit
def _capped(logits, softcap):
    """c * tanh(z / c)."""
    size = tl.exp(2.0 * tl.abs(tl.div_rn(logits, softcap + tl.zeros_like(logits))))
    bent = softcap * (1.0 - 2.0 / (size + 1.0))
    return tl.where(logits < 0.0, -bent, bent)


@triton.jit
def draft_head_kernel(
    values_ptr,  # [M, count] fp32
    columns_ptr,  # [M, count] int64
    log_sums_ptr,  # [M] fp32, or values when not asked for
    lists_ptr,  # [spans, count, M] int64: keys, largest first
    highest_ptr, sums_ptr,  # [spans, M] fp32: of each span the largest logit, sum exp(z - largest)
    tickets_ptr,  # [sixteens of rows] int32, zero before and after
    x_ptr,  # [M, K]
    weight_ptr,  # [N, K]
    bias_ptr,  # [N], or x when there is none
    softcap, num_rows, num_outputs, depth, stride_x, count, span, num_spans,
    HAS_BIAS: tl.constexpr,
    CAPPED: tl.constexpr,
    WITH_SUM: tl.constexpr,
    WIDEN: tl.constexpr,  # products of fp32 numbers: for fp32 x, and in the interpreter
    COUNT: tl.constexpr,
    SPANS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    sixteen = tl.program_id(1)
    row = sixteen * _ROWS + tl.arange(0, _ROWS)
    has_row = row < num_rows
    x_rows = x_ptr + row.to(tl.int64)[None, :] * stride_x
    best = tl.full((COUNT, _ROWS), _NONE, tl.int64)
    highest = tl.full((_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((_ROWS,), tl.float32)
    for begin in range(part * span, min(part * span + span, num_outputs), BLOCK_N):
        column = begin + tl.arange(0, BLOCK_N)
        has_column = (column < num_outputs)[:, None]
        weight_rows = weight_ptr + column.to(tl.int64)[:, None] * depth
        logits = tl.zeros((BLOCK_N, _ROWS), tl.float32)
        for start in range(0, depth, BLOCK_K):
            k = start + tl.arange(0, BLOCK_K)
            has_k = k < depth
            weight = tl.load(weight_rows + k[None, :], mask=has_column & has_k[None, :], other=0.0)
            x = tl.load(x_rows + k[:, None], mask=has_k[:, None] & has_row[None, :], other=0.0)
            if WIDEN:
                weight = weight.to(tl.float32)
                x = x.to(tl.float32)
            logits += tl.dot(weight, x, input_precision="ieee")
        if HAS_BIAS:
            bias = tl.load(bias_ptr + column, mask=column < num_outputs, other=0.0)
            logits += bias.to(tl.float32)[:, None]
        if CAPPED:
            logits = _capped(logits, softcap)
        keys = tl.where(has_column, _keys(logits, column[:, None]), _NONE)
        best = _merged(best, keys, count, COUNT)
        if WITH_SUM:
            logits = tl.where(has_column, logits, float("-inf"))
            largest = tl.maximum(highest, tl.max(logits, 0))
            base = tl.where(tl.abs(largest) == float("inf"), 0.0, largest)
            scale = tl.exp(tl.where(highest == float("-inf"), highest, highest - base))
            total = total * scale + tl.sum(tl.exp(logits - base[None, :]), 0)
            highest = tl.where(largest == float("-inf"), largest, base)
    rank = tl.arange(0, COUNT)[:, None]
    step = tl.zeros((), tl.int64) + num_rows
    lists = lists_ptr + part * step * count + rank * step + row[None, :]
    tl.store(lists, best, mask=(rank < count) & has_row[None, :])
    if WITH_SUM:
        tl.store(highest_ptr + part * step + row, highest, mask=has_row)
        tl.store(sums_ptr + part * step + row, total, mask=has_row)
    tl.debug_barrier()  # every thread's lists are out before the ticket is drawn
    if tl.atomic_add(tickets_ptr + sixteen, 1, sem="acq_rel") == num_spans - 1:
        tl.store(tickets_ptr + sixteen, 0)  # for the next launch
        lane = tl.arange(0, SPANS)[:, None]
        held = (lane < num_spans) & has_row[None, :]
        at = lists_ptr + lane * step * count + row[None, :]
        heads = tl.load(at, mask=held, other=_NONE, cache_modifier=".cg")
        out = row.to(tl.int64) * count
        for i in range(count):
            top = tl.max(heads, 0)
            tl.store(values_ptr + out + i, _logits_of(top), mask=has_row)
            found = 0x7FFFFFFF - (top & 0xFFFFFFFF)
            tl.store(columns_ptr + out + i, found, mask=has_row)
            taken = held & (heads == top[None, :])
            at = tl.where(taken, at + step, at)
            more = taken & (i < count - 1)
            following = tl.load(at, mask=more, other=_NONE, cache_modifier=".cg")
            heads = tl.where(taken, following, heads)
        if WITH_SUM:
            place = lane * step + row[None, :]
            tops = tl.load(
                highest_ptr + place, mask=held, other=float("-inf"), cache_modifier=".cg"
            )
            parts = tl.load(sums_ptr + place, mask=held, other=0.0, cache_modifier=".cg")
            reach = tl.max(tops, 0)
            reach = tl.where(tl.abs(reach) == float("inf"), 0.0, reach)
            whole = tl.sum(parts * tl.exp(tops - reach[None, :]), 0)
            whole = tl.where(has_row, whole, 1.0)
            tl.store(log_sums_ptr + row, reach + tl.log(whole), mask=has_row)


def draft_head_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    count: int,
    bias: torch.Tensor | None,
    softcap: float | None,
    with_log_sum: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(values, columns, log_sums); arguments are those of ``draft_head``, checked; rows dense."""
    (num_rows, depth), num_outputs = x.shape, weight.shape[0]
    shape = configuration("draft_head", architecture_of(x.device))
    span = span_of(num_outputs, shape.blocks["BLOCK_N"])
    spans, sixteens = triton.cdiv(num_outputs, span), triton.cdiv(num_rows, 16)

    def new(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=x.device)

    values, columns = new(num_rows, count), new(num_rows, count, dtype=torch.int64)
    log_sums = new(num_rows) if with_log_sum else None
    launch(
        draft_head_kernel,
        (spans, sixteens),
        dict(
            **dict(values_ptr=values, columns_ptr=columns),
            log_sums_ptr=values if log_sums is None else log_sums,
            lists_ptr=new(spans, count, num_rows, dtype=torch.int64),
            **dict(highest_ptr=new(spans, num_rows), sums_ptr=new(spans, num_rows)),
            tickets_ptr=torch.zeros(sixteens, dtype=torch.int32, device=x.device),
            **dict(x_ptr=x, weight_ptr=weight, bias_ptr=x if bias is None else bias),
            **dict(softcap=softcap or 0.0, num_rows=num_rows, num_outputs=num_outputs),
            **dict(depth=depth, stride_x=x.stride(0), count=count, span=span, num_spans=spans),
            **dict(HAS_BIAS=bias is not None, CAPPED=softcap is not None, WITH_SUM=with_log_sum),
            WIDEN=x.dtype == torch.float32 or interpreting(),
            COUNT=triton.next_power_of_2(count),
            SPANS=triton.next_power_of_2(spans),
        ),
        shape,
    )
    return values, columns, log_sums


def variants() -> Iterator[Variant]:
    """bf16, the best and the best eight and 64; fp32 rows with a bf16 head and log-sums."""
    for dtype, count, with_sum in (
        (torch.bfloat16, 1, False),
        (torch.bfloat16, 8, True),
        (torch.bfloat16, 64, True),
        (torch.float32, 8, True),
    ):
        pointer = f"*{TYPES[dtype]}"
        yield Variant(
            kernel="draft_head",
            label=f"{TYPES[dtype]} best {count}{' log-sum' if with_sum else ''}",
            function=draft_head_kernel,
            arguments=dict(
                **dict.fromkeys(("values_ptr", "log_sums_ptr", "highest_ptr", "sums_ptr"), "*fp32"),
                **dict(columns_ptr="*i64", lists_ptr="*i64", tickets_ptr="*i32", x_ptr=pointer),
                **dict(weight_ptr="*bf16", bias_ptr=pointer, softcap="fp32", num_rows="i32"),
                **dict(num_outputs="i32", depth="i32", stride_x="i32", count="i32", span="i32"),
                num_spans="i32",
            ),
            constants=dict(
                **dict(HAS_BIAS=False, CAPPED=False, WITH_SUM=with_sum, COUNT=count, SPANS=256),
                WIDEN=dtype == torch.float32,
            ),
            divisible=frozenset({"depth", "stride_x", "span"}),
        )
