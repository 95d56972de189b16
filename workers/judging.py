"""Outputs against stock: exact by equality, else by token forcing or the distribution gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from draftsmith.engine.distribution import distribution_gate
from draftsmith.engine.forcing import (
    EmittedOutput,
    ForcedVerdict,
    force_outputs,
    measure_margin_noise,
)
from draftsmith.engine.job import STOCK, Judgement, MeasureJob, OutputRecord
from draftsmith.engine.model.model import Model
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.stopping import TextDecoder
from draftsmith.engine.types import Completion, Request, SpecConfig

NOISE_REQUESTS = 8  # prompts on which the margin noise is measured
_SEVERITY: tuple[Judgement, ...] = ("exact", "distribution", "tie", "divergent")

Outputs = dict[str, dict[str, list[Completion]]]  # configuration -> request id -> by repeat


@dataclass(slots=True)
class Findings:
    """What judging found so far; filled in place, so that an interruption keeps it."""

    records: list[OutputRecord] = field(default_factory=list)
    margin_noise: float | None = None
    stock_ties: int = 0
    stock_positions: int = 0


class Judge:
    """Judges the outputs of one job. ``check`` is called between outputs and may raise to stop."""

    def __init__(
        self,
        job: MeasureJob,
        engine: NativeEngine,
        tokenizer: TextDecoder | None,
        check: Callable[[], None],
    ) -> None:
        self._job = job
        self._engine = engine
        self._model: Model = engine.model
        self._tokenizer = tokenizer
        self._check = check
        self._requests = {request.request_id: request for request in job.requests}
        self.findings = Findings(
            margin_noise=job.margin_noise,
            stock_ties=job.stock_ties,
            stock_positions=job.stock_positions,
        )

    def judge_all(self, outputs: Outputs) -> None:
        """Every output of every configuration, stock first."""
        if self._job.margin_noise is None:
            self._measure_noise()
        stock = outputs[STOCK]
        for name, by_request in outputs.items():
            gated = self._gated(name, by_request)
            for request_id, completions in by_request.items():
                self._check()
                verdict = gated.get(request_id)
                if verdict is None:
                    verdict = self._judge(name, completions, stock[request_id][0])
                self.findings.records.append(self._record(name, completions[0], verdict))

    def keep_exact(self, outputs: Outputs) -> None:
        """Without running the model: the outputs that equal stock's. For jobs cut short."""
        judged = {(record.config, record.request_id) for record in self.findings.records}
        for name, by_request in outputs.items():
            for request_id, completions in by_request.items():
                stock = outputs.get(STOCK, {}).get(request_id)
                if (name, request_id) in judged or stock is None or self._job.force_all:
                    continue
                wanted = self._expected(name, stock[0])
                if all(_output(completion) == wanted for completion in completions):
                    self.findings.records.append(
                        self._record(name, completions[0], _exact(completions[0]))
                    )

    def _expected(self, name: str, stock: Completion) -> tuple[object, object]:
        """Tokens and stop reason that make an output of ``name`` exact."""
        reference = self._job.references.get(stock.request_id)
        if name == STOCK and reference is not None:
            return reference, stock.stop_reason
        return stock.token_ids, stock.stop_reason

    def _judge(
        self, name: str, completions: Sequence[Completion], stock: Completion
    ) -> ForcedVerdict:
        """The worst verdict over the distinct outputs of the repeats."""
        wanted = self._expected(name, stock)
        verdicts = []
        for completion in {_output(one): one for one in completions}.values():
            if _output(completion) == wanted and not self._job.force_all:
                verdicts.append(_exact(completion))
                continue
            (verdict,) = force_outputs(
                self._model,
                [self._requests[completion.request_id]],
                [_emitted(completion)],
                margin_noise=self.findings.margin_noise or 0.0,
                tokenizer=self._tokenizer,
            )
            verdicts.append(verdict)
        return max(verdicts, key=lambda verdict: _SEVERITY.index(verdict.judgement))

    def _gated(
        self, name: str, by_request: Mapping[str, list[Completion]]
    ) -> dict[str, ForcedVerdict]:
        """Verdicts of the distribution gate, for requests whose tokens need not be stock's."""
        if self._job.configs[name].verifier == "coupled" or name == STOCK:
            return {}
        sampled = [
            completions[0]
            for request_id, completions in by_request.items()
            if self._requests[request_id].sampling.temperature > 0.0
        ]
        if not sampled:
            return {}
        self._check()
        verdicts = distribution_gate(
            self._model,
            [self._requests[one.request_id] for one in sampled],
            [_emitted(one) for one in sampled],
            tokenizer=self._tokenizer,
        )
        return {verdict.request_id: verdict for verdict in verdicts}

    def _measure_noise(self) -> None:
        """Decode some prompts with stock again, one at a time and untimed, recording margins."""
        requests: list[Request] = []
        completions: list[Completion] = []
        for request in self._job.requests[:NOISE_REQUESTS]:
            self._check()
            outcome = self._engine.run([request], SpecConfig(), capture_margins=True)
            requests.append(request)
            completions.extend(outcome.completions)
        estimate = measure_margin_noise(self._model, requests, completions)
        if self._job.margin_noise is None:
            self.findings.margin_noise = estimate.noise
        self.findings.stock_ties = estimate.num_ties
        self.findings.stock_positions = estimate.num_positions

    def _record(self, name: str, completion: Completion, verdict: ForcedVerdict) -> OutputRecord:
        accepted, drafted = _by_position(self._job.configs[name], completion)
        detail = verdict.detail
        reference = self._job.references.get(completion.request_id)
        if name == STOCK and reference is not None and reference != completion.token_ids:
            where = _first_difference(reference, completion.token_ids)
            differs = f"stock differs from its reference at position {where}"
            detail = f"{differs}; {detail}" if detail else differs
        return OutputRecord(
            config=name,
            request_id=completion.request_id,
            token_ids=completion.token_ids,
            stop_reason=completion.stop_reason,
            judgement=verdict.judgement,
            num_ties=verdict.num_ties,
            position=verdict.position,
            emitted=verdict.emitted,
            expected=verdict.expected,
            margin=verdict.margin,
            detail=detail,
            accepted_by_position=accepted,
            drafted_by_position=drafted,
        )


def _output(completion: Completion) -> tuple[object, object]:
    return completion.token_ids, completion.stop_reason


def _emitted(completion: Completion) -> EmittedOutput:
    return EmittedOutput(completion.request_id, completion.token_ids, completion.stop_reason)


def _exact(completion: Completion) -> ForcedVerdict:
    return ForcedVerdict(
        request_id=completion.request_id,
        judgement="exact",
        num_positions=len(completion.token_ids),
    )


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _by_position(
    config: SpecConfig, completion: Completion
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Steps that accepted, and that drafted, at least i + 1 tokens along one path. A tree's depth
    is not in the step's counts: it is taken to reach as deep as the configuration lets it, if it
    has that many nodes.
    """
    limit = len(config.branching) if config.tree == "static" else 0
    limit = limit or config.block_size
    depths = [
        max(step.accepted, min(step.drafted, limit)) for step in completion.steps if step.drafted
    ]
    depth = max(depths, default=0)
    accepted = tuple(sum(step.accepted > i for step in completion.steps) for i in range(depth))
    return accepted, tuple(sum(reach > i for reach in depths) for i in range(depth))
