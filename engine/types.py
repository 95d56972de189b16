"""Small frozen records that the engine's parts hand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from draftsmith.kernels.panels import Weight

StopReason = Literal["stop_token", "stop_string", "length"]
TreeShape = Literal["chain", "static", "dynamic"]
Budget = Literal["fixed", "gain"]
Verifier = Literal["coupled", "rejection", "block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one request's tokens are chosen; the same with and without speculation.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 and ``min_p`` 0 are off. The penalties
    follow vLLM: repetition over prompt and output, presence and frequency over the output only.
    Stop tokens and the model's EOS end a request unless ``ignore_eos``; none of them can be emitted
    before ``min_tokens``.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    max_tokens: int = 128
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecConfig:
    """One speculative-decoding configuration: a point of the search space. Fields that the drafter
    does not read are left at their defaults (``tuner/space.py`` normalises them).
    """

    drafter: str = "none"
    block_size: int = 4  # draft tokens along one path
    tree: TreeShape = "chain"
    branching: tuple[int, ...] = ()  # static: children per node by depth; empty = dynamic programme
    tree_budget: int = 16  # static (programme) and dynamic: draft nodes, root excluded
    tree_top_k: int = 4  # dynamic: children ranked per node
    exit_layer: int | None = None  # early_exit: layers run before leaving
    skip_layers: tuple[int, ...] = ()  # early_exit: layers left out instead of a cut at exit_layer
    draft_vocab: int | None = None  # rows of the trimmed draft head; None = the whole vocabulary
    stop_threshold: float = 0.0  # sequential drafters: stop after a token under this probability
    match_min: int = 1  # ngram: shortest match; suffix: shortest match
    match_max: int = 3  # ngram: longest match; suffix: depth cap
    spec_factor: float = 1.0  # suffix: drafted tokens per matched token
    min_token_prob: float = 0.1  # suffix: least path probability by counts
    recycle_k: int = 8  # recycle: successors kept per token
    fallback_size: int = 0  # ngram, suffix: shorter chains are filled up by recycling
    accept_p: float = 1.0  # scripted: probability of a right token
    script: Literal["oracle", "wrong", "mixed", "random"] = "oracle"
    script_right: int = 0  # scripted mixed: right tokens before the wrong one
    draft_model: str | None = None  # draft_model: folder of the drafter's checkpoint
    verifier: Verifier = "coupled"
    draft_budget: Budget = "fixed"  # gain: as many draft tokens as pay at the measured step times


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt with its sampling. ``category`` and ``arrival_s`` come from the workload."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    category: str = ""
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Counts of one verify step of one request. ``accepted`` is the matching prefix that was
    committed; ``committed`` includes the bonus token and excludes what a stop condition cut off.
    """

    drafted: int
    accepted: int
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one request produced. Times are seconds on the engine's clock, relative to admission."""

    request_id: str
    token_ids: tuple[int, ...]
    stop_reason: StopReason
    steps: tuple[StepRecord, ...]
    prefill_s: float
    decode_s: float
    margins: tuple[float, ...] = ()  # stock only: top-1 minus top-2 processed logit a position


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """New rows for some cache slots: the only way that tokens enter the model.

    Row ``i`` of slot ``b`` is written at cache row ``cache.lengths[slots[b]] + offset + i`` and
    attends to the committed rows of its slot (``0 .. lengths-1``) and to the draft rows that
    ``visible`` names. ``visible`` is ``[B, W, offset + W]`` bool over draft rows (itself included);
    None is a causal chain. ``positions`` are logical: committed length + depth, never the flat
    index (cases.md B21). Rows past ``widths[b]`` are padding and must have no effect on real rows.
    """

    slots: tuple[int, ...]
    token_ids: torch.Tensor  # [B, W] int64
    positions: torch.Tensor  # [B, W] int64
    widths: tuple[int, ...]
    offset: int = 0
    visible: torch.Tensor | None = None  # [B, W, offset + W] bool


@dataclass(frozen=True, slots=True)
class Hidden:
    """Result of a forward: residual stream before the final norm, and captured layer outputs."""

    last: torch.Tensor  # [B, W, H]
    captured: dict[int, torch.Tensor] = field(default_factory=dict)  # layer index -> [B, W, H]


@dataclass(frozen=True, slots=True)
class HeadRows:
    """A trimmed head: rows of the target's head gathered once, and the ids they stand for."""

    token_ids: torch.Tensor  # [Vd] int64, ascending
    weight: Weight  # [Vd, H]
    bias: torch.Tensor | None = None  # [Vd]


@dataclass(frozen=True, slots=True)
class SlotView:
    """What a drafter may see of one running request. ``tokens`` is prompt + output; its last
    element is the root: committed, not yet in the cache. ``budget`` caps the drafted nodes of this
    step.
    """

    slot: int
    tokens: Sequence[int]
    prompt_len: int
    sampling: Sampling
    budget: int


@dataclass(frozen=True, slots=True)
class Commit:
    """What verification decided for one slot, handed to ``Drafter.observe``.

    ``path`` are accepted node indices of the drafted tree, root excluded, in order. ``tokens`` are
    the newly committed tokens (accepted + bonus, after stop conditions). ``logits`` are the
    target's raw logits per verified row (row 0 the root, row ``i + 1`` node ``i``), None unless
    ``Drafter.needs_logits``.
    """

    slot: int
    tokens: tuple[int, ...]
    path: tuple[int, ...]
    finished: bool
    logits: torch.Tensor | None = None  # [1 + n, V] fp32
