"""What ``bench`` measures: configurations against stock on one set of requests, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from draftsmith.cli.errors import CliEnvironmentError
from draftsmith.cli.progress import counted
from draftsmith.engine.job import STOCK, DraftInputs, MeasureJob, MeasureResult, TargetRef
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.tuner.allotment import in_pieces
from draftsmith.tuner.evidence import Evidence, StockRecord, collect
from draftsmith.tuner.executor import Executor
from draftsmith.tuner.objective import decode_only, ratio_interval
from draftsmith.tuner.result import Interval
from draftsmith.tuner.space import config_json, config_text

CHUNK_UNITS = 4  # requests a job, in concurrencies: how often progress moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which requests run, under which configurations (stock apart), how often."""

    target: TargetRef
    requests: Sequence[Request]
    configs: Mapping[str, SpecConfig]
    inputs: DraftInputs
    concurrency: int
    repeats: int


def compare(plan: Plan, executor: Executor) -> dict[str, Any]:
    """Measure the plan; stock's row and one a configuration, as JSON."""
    evidence = {name: Evidence() for name in plan.configs}
    stock_s = stock_tokens = 0.0
    first: MeasureResult | None = None  # stock's own noise is measured there
    size = CHUNK_UNITS * plan.concurrency
    chunks = in_pieces(plan.requests, size, plan.concurrency)
    with counted("measuring", len(chunks)) as step:
        for number, chunk in enumerate(chunks):
            result = _measure(plan, executor, number, chunk, first)
            first = first or result
            record = StockRecord(
                references={o.request_id: o.token_ids for o in result.outputs if o.config == STOCK},
                ties=first.stock_ties,
                positions=first.stock_positions,
            )
            for name in plan.configs:
                evidence[name] += collect(
                    name,
                    result.timings,
                    result.outputs,
                    record,
                    peak_memory_bytes=result.peak_memory_bytes.get(name),
                )
            stock = [timing for timing in result.timings if timing.config == STOCK]
            stock_s += sum(timing.seconds for timing in stock)
            stock_tokens += sum(timing.num_tokens for timing in stock)
            step()
    return {
        "target": asdict(plan.target),
        "num_prompts": len(plan.requests),
        "concurrency": plan.concurrency,
        "repeats": plan.repeats,
        "stock_tokens_per_s": stock_tokens / stock_s,
        "configurations": [
            _row(name, plan.configs[name], found) for name, found in evidence.items()
        ],
    }


def _measure(
    plan: Plan,
    executor: Executor,
    number: int,
    requests: Sequence[Request],
    first: MeasureResult | None,
) -> MeasureResult:
    executor.submit(
        MeasureJob(
            job_id=f"bench {number}",
            target=plan.target,
            requests=tuple(requests),
            configs={STOCK: SpecConfig(), **plan.configs},
            concurrency=plan.concurrency,
            repeats=plan.repeats,
            inputs=plan.inputs,
            margin_noise=first.margin_noise if first else None,
            stock_ties=first.stock_ties if first else 0,
            stock_positions=first.stock_positions if first else 0,
            timeout_s=24 * 3600.0,
        )
    )
    result = executor.next_result(None)
    if result is None or result.status != "ok":
        what = f"{result.status}: {result.reason}" if result else "no answer"
        raise CliEnvironmentError(f"the configurations could not be measured ({what})")
    return result


def _row(name: str, config: SpecConfig, found: Evidence) -> dict[str, Any]:
    total = ratio_interval(found.pairs) if found.pairs else None
    decode = ratio_interval(found.pairs, seconds=decode_only) if found.pairs else None
    config_s = sum(pair.config_s for pair in found.pairs)
    tokens = sum(pair.num_tokens for pair in found.pairs)
    return {
        "name": name,
        "config": config_json(config),
        "config_text": config_text(config),
        "tokens_per_s": tokens / config_s if config_s else None,
        "ratio": _interval(total),
        "decode_ratio": _interval(decode),
        "tokens_per_step": found.tokens_per_step,
        "acceptance_by_position": found.acceptance_by_position,
        "lossless": not found.num_divergent and not found.suspect,
        "num_outputs": found.num_outputs,
        "num_exact": found.num_exact,
        "num_ties": found.num_ties,
        "num_divergent": found.num_divergent,
        "divergence": found.divergence,
        "peak_memory_bytes": found.peak_memory_bytes,
    }


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)
