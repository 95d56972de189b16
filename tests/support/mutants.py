"""Mutants of the engine, and who kills each: token forcing where an output changed, else the row
test (the logits of every verified row equal those of a plain forward over the same tokens).

The outputs of a mutant are judged with the mutant gone: stock, forcing and the plain forward are
those of the real engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from losslessness import make_requests
from mutant import SPECULATION, VOCAB, Mutant
from row_mutants import ROW_MUTANTS
from rows import plain_logits
from tinymodels import tiny_decoder
from token_mutants import TOKEN_MUTANTS

from draftsmith.engine.batch import Running
from draftsmith.engine.decode import DecodeLoop
from draftsmith.engine.drafters.draft_model import DraftModelDrafter
from draftsmith.engine.forcing import (
    EmittedOutput,
    ForcedVerdict,
    force_outputs,
    measure_margin_noise,
)
from draftsmith.engine.job import DraftInputs
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.stock import StockOutput, decode_stock
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Completion, Request, SlotView, SpecConfig
from draftsmith.engine.verify import Verdict

MUTANTS: tuple[Mutant, ...] = (*TOKEN_MUTANTS, *ROW_MUTANTS)
REALISTIC_NOISE = 0.02  # logits; the margin noise of bf16 weights where rows are not stable
ROW_TOLERANCE = 1e-5  # logits, fp32 (cases.md B21)
INPUTS = DraftInputs(draft_vocab_ids=tuple(range(VOCAB - 1, -1, -1)))


@dataclass(frozen=True, slots=True)
class Row:
    """Logits ``[V]`` that verification or the draft model's root used, and the tokens before
    them.
    """

    tokens: tuple[int, ...]
    logits: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one mutant, judged with the margin noise measured here. ``num_wrong_position``
    counts changed outputs whose verdict does not name the first difference from stock,
    ``num_alarms`` unchanged outputs that are not ``exact``. ``num_ties_noisy`` are changed outputs
    that would be called ``tie`` under ``REALISTIC_NOISE``: those where each changed token was
    within that noise of stock's.
    """

    mutant: Mutant
    num_outputs: int
    num_changed: int
    num_divergent: int
    num_wrong_position: int
    num_alarms: int
    num_ties: int
    num_ties_noisy: int
    num_rows: int
    num_wrong_rows: int

    @property
    def killer(self) -> str | None:
        """None: the mutant survives. Where every change is within ``REALISTIC_NOISE`` of stock, as
        where nothing changed, it takes the row test.
        """
        if self.num_alarms or self.num_ties or self.num_wrong_position:
            return None
        if self.num_divergent != self.num_changed:
            return None
        if self.num_divergent > self.num_ties_noisy:
            return "token forcing"
        return "row test" if self.num_wrong_rows else None


@cache
def model_of(family: str = "llama", dtype: torch.dtype = torch.float32) -> Decoder:
    return tiny_decoder(num_layers=4, vocab_size=VOCAB, family=family, dtype=dtype)


@cache
def _stock(model: Decoder, request: Request) -> StockOutput:
    return decode_stock(model, request)


@cache
def margin_noise(model: Decoder) -> float:
    """The noise that a user's run would measure on this machine: 0 where rows are stable."""
    requests = make_requests(6, VOCAB)
    stock = NativeEngine(model).run(requests, SpecConfig(), capture_margins=True)
    return measure_margin_noise(model, requests, stock.completions).noise


def run_config(
    model: Decoder, requests: Sequence[Request], name: str, concurrency: int
) -> tuple[Completion, ...]:
    """Completions of one configuration of ``SPECULATION`` in an engine of its own."""
    config = SPECULATION[name]
    references = None
    if config.drafter == "scripted":
        references = {request.request_id: _stock(model, request).token_ids for request in requests}
    engine = NativeEngine(model, load_draft_model=lambda _: model)
    return engine.run(
        requests,
        config,
        concurrency=concurrency,
        inputs=INPUTS,
        references=references,
    ).completions


def try_mutant(mutant: Mutant, *, outputs: int, rows: int) -> Trial:
    """Run at least ``outputs`` outputs under the mutant, spread over its configurations; judge them
    and at most ``rows`` of the rows behind them.
    """
    model = model_of(mutant.family)
    count = -(-outputs // len(mutant.configs))
    requests = make_requests(count, VOCAB, **mutant.sampling)
    for request in requests:
        _stock(model, request)
    seen: list[Row] = []
    completions: list[tuple[Request, Completion]] = []
    for name in mutant.configs:
        with recorded_rows(seen), mutant.planted():
            done = run_config(model, requests, name, mutant.concurrency)
        completions.extend(zip(requests, done, strict=True))
    noise = margin_noise(model)
    strict = [_judge(model, request, done, noise) for request, done in completions]
    changes = [_first_change(_stock(model, request), done) for request, done in completions]
    changed = [i for i, position in enumerate(changes) if position is not None]
    noisy = [_judge(model, *completions[i], REALISTIC_NOISE) for i in changed]
    kept = seen[:: max(1, -(-len(seen) // rows))]
    return Trial(
        mutant=mutant,
        num_outputs=len(completions),
        num_changed=len(changed),
        num_divergent=sum(strict[i].judgement == "divergent" for i in changed),
        num_wrong_position=sum(strict[i].position != changes[i] for i in changed),
        num_alarms=sum(
            verdict.judgement != "exact"
            for verdict, position in zip(strict, changes, strict=True)
            if position is None
        ),
        num_ties=sum(strict[i].judgement == "tie" for i in changed),
        num_ties_noisy=sum(verdict.judgement == "tie" for verdict in noisy),
        num_rows=len(kept),
        num_wrong_rows=sum(not row_is_plain(model, row) for row in kept),
    )


def _judge(model: Decoder, request: Request, done: Completion, noise: float) -> ForcedVerdict:
    output = EmittedOutput(done.request_id, done.token_ids, done.stop_reason)
    (verdict,) = force_outputs(model, [request], [output], margin_noise=noise)
    return verdict


def _first_change(stock: StockOutput, done: Completion) -> int | None:
    """First output position at which stock did otherwise; the length where only the reason
    differs.
    """
    for position, (ours, theirs) in enumerate(
        itertools.zip_longest(done.token_ids, stock.token_ids)
    ):
        if ours != theirs:
            return position
    return None if done.stop_reason == stock.stop_reason else len(stock.token_ids)


@contextmanager
def recorded_rows(seen: list[Row]) -> Iterator[None]:
    """Collect every row that verification and the draft model's root used. Enter it before a mutant
    is planted: it then sees what the mutant passes on.
    """
    judge, roots = DecodeLoop._judge, DraftModelDrafter.roots

    def judge_recorded(
        self: DecodeLoop,
        logits: torch.Tensor,
        widths: Sequence[int],
        running: Sequence[Running],
        trees: Sequence[DraftTree],
    ) -> list[Verdict]:
        start = 0
        for one, width, tree in zip(running, widths, trees, strict=True):
            paths = [()]
            for token, parent in zip(tree.tokens, tree.parents, strict=True):
                paths.append((*paths[parent + 1], token))
            for row, path in zip(logits[start : start + width], paths, strict=False):
                seen.append(Row((*one.tokens, *path), row.clone()))
            start += width
        return judge(self, logits, widths, running, trees)

    def roots_recorded(self: DraftModelDrafter, views: Sequence[SlotView]) -> torch.Tensor:
        hidden = roots(self, views)
        logits = self._model.head(hidden)
        seen.extend(Row(tuple(view.tokens), row) for view, row in zip(views, logits, strict=True))
        return hidden

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DecodeLoop, "_judge", judge_recorded)
        patch.setattr(DraftModelDrafter, "roots", roots_recorded)
        yield


def row_is_plain(model: Decoder, row: Row) -> bool:
    """The row's logits are those of a plain forward over its tokens."""
    plain = plain_logits(model, row.tokens)[-1]
    return bool((plain - row.logits).abs().max() <= ROW_TOLERANCE)


def clean_verdicts(outputs: int) -> list[ForcedVerdict]:
    """Verdicts of at least ``outputs`` outputs without a mutant: every configuration, greedy and
    sampled, fp32 and bf16, alone and together.
    """
    verdicts: list[ForcedVerdict] = []
    cells = list(itertools.product(SPECULATION, (0.0, 0.8), (torch.float32, torch.bfloat16)))
    each = -(-outputs // len(cells))
    for index, (name, temperature, dtype) in enumerate(cells):
        model = model_of(dtype=dtype)
        requests = make_requests(6, VOCAB, seed=1, temperature=temperature)
        requests = [requests[(index + i) % 6] for i in range(each)]
        for request, done in zip(
            requests, run_config(model, requests, name, 1 + index % 3), strict=True
        ):
            verdicts.append(_judge(model, request, done, margin_noise(model)))
    return verdicts


def table(trials: Sequence[Trial]) -> str:
    """Mutant -> killer, one line each."""
    head = (
        *("mutant", "fault", "outputs", "changed", "divergent", f"tie at {REALISTIC_NOISE}"),
        *("rows", "wrong", "killer"),
    )
    lines = [
        (
            trial.mutant.name,
            trial.mutant.fault,
            str(trial.num_outputs),
            str(trial.num_changed),
            str(trial.num_divergent),
            str(trial.num_ties_noisy),
            str(trial.num_rows),
            str(trial.num_wrong_rows),
            trial.killer or "SURVIVES",
        )
        for trial in trials
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    texts = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    )
    return "\n".join(texts)
