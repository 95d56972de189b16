"""Requests on their way: what is running in which slot, what waits, and how drafts become model
rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from draftsmith.engine.sampling import RowContext
from draftsmith.engine.stopping import StopRule
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Completion, Request, RowBatch, SlotView, StepRecord, StopReason


@dataclass(slots=True)
class Running:
    """One admitted request: its tokens so far and what each step did."""

    request: Request
    slot: int
    rule: StopRule
    tokens: list[int]
    admitted_s: float
    prefilled_s: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    stop_reason: StopReason | None = None

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    def context(self) -> RowContext:
        return RowContext(
            self.request.sampling,
            self.prompt_len,
            self.tokens,
            request_id=self.request.request_id,
        )

    def view(self, budget: int) -> SlotView:
        return SlotView(self.slot, self.tokens, self.prompt_len, self.request.sampling, budget)

    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.sampling.max_tokens - (len(self.tokens) - self.prompt_len)

    def commit(self, drafted: int, proposed: Sequence[int]) -> tuple[int, ...]:
        """Append the verified tokens (accepted + bonus) up to the first that ends the request;
        record the step.
        """
        kept = 0
        for token in proposed:
            self.tokens.append(token)
            kept += 1
            self.stop_reason = self.rule.check(self.tokens, self.prompt_len)
            if self.stop_reason is not None:
                break
        accepted = min(kept, len(proposed) - 1)
        self.steps.append(StepRecord(drafted=drafted, accepted=accepted, committed=kept))
        return tuple(proposed[:kept])

    def completion(self, now_s: float) -> Completion:
        assert self.stop_reason is not None
        return Completion(
            request_id=self.request.request_id,
            token_ids=tuple(self.output),
            stop_reason=self.stop_reason,
            steps=tuple(self.steps),
            prefill_s=self.prefilled_s - self.admitted_s,
            decode_s=now_s - self.prefilled_s,
            margins=tuple(self.margins),
        )


class WaitingLine:
    """First come, first served admission."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._waiting = deque(requests)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def pop(self) -> Request:
        return self._waiting.popleft()


def causal_rows(slot: int, token_ids: Sequence[int], start: int) -> RowBatch:
    """A chain of tokens for one slot, at logical positions ``start ...``."""
    width = len(token_ids)
    return RowBatch(
        slots=(slot,),
        token_ids=torch.tensor([list(token_ids)], dtype=torch.int64),
        positions=torch.arange(start, start + width).unsqueeze(0),
        widths=(width,),
    )


def verify_rows(running: Sequence[Running], trees: Sequence[DraftTree]) -> RowBatch:
    """Root and draft nodes of every slot, padded to the widest; positions are committed length +
    depth.
    """
    widths = tuple(1 + len(tree) for tree in trees)
    width = max(widths)
    token_ids = np.zeros((len(trees), width), dtype=np.int64)
    positions = np.zeros((len(trees), width), dtype=np.int64)
    chains = all(tree.is_chain for tree in trees)
    visible = None if chains else np.zeros((len(trees), width, width), dtype=bool)
    for b, (one, tree) in enumerate(zip(running, trees, strict=True)):
        size = widths[b]
        root = len(one.tokens) - 1
        token_ids[b, 0] = one.tokens[-1]
        token_ids[b, 1:size] = tree.tokens
        positions[b] = root
        positions[b, 1:size] = root + np.asarray(tree.depths(), dtype=np.int64)
        if visible is not None:
            visible[b, :size, :size] = tree.ancestors()
    return RowBatch(
        slots=tuple(one.slot for one in running),
        token_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(positions),
        widths=widths,
        visible=None if visible is None else torch.from_numpy(visible),
    )


def real_rows(hidden: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """``[B, W, H]`` -> ``[sum(widths), H]`` without the padding rows."""
    if len(widths) == 1:
        return hidden[0, : widths[0]]
    return torch.cat([hidden[b, :width] for b, width in enumerate(widths)])
