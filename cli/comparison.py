"""What ``bench`` measures: configurations against stock on one set of requests, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from draftsmith.cli.errors import CliEnvironmentError, CliInputError
from draftsmith.cli.peers import native_turns, peer_rows, speeds
from draftsmith.cli.progress import counted
from draftsmith.engine.job import (
    STOCK,
    DraftInputs,
    MeasureJob,
    MeasureResult,
    TargetRef,
)
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.engine.units import in_pieces, unit_size
from draftsmith.tuner.evidence import Evidence, StockRecord, collect
from draftsmith.tuner.executor import Executor
from draftsmith.tuner.objective import decode_only, ratio_interval
from draftsmith.tuner.result import Interval
from draftsmith.tuner.space import config_json, config_text
from draftsmith.workers.peers.peer import Peer

CHUNK_UNITS = 4  # timed units of a job at least: how often progress moves


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which requests run, under which configurations (stock apart) and beside which peers (the
    executor's rivals), how often.
    """

    target: TargetRef
    requests: Sequence[Request]
    configs: Mapping[str, SpecConfig]
    inputs: DraftInputs
    concurrency: int
    repeats: int
    peers: Mapping[str, Peer] = field(default_factory=dict)

    @property
    def num_units(self) -> int:
        """Timed units of a job: a multiple of those who take turns, so that each is first (second
        ...) equally often.
        """
        turns = 1 + len(self.configs) + len(self.peers)
        return turns * -(-CHUNK_UNITS // turns)


def compare(plan: Plan, executor: Executor) -> dict[str, Any]:
    """Measure the plan; stock's row, one a configuration and one a peer, as JSON."""
    evidence = {name: Evidence() for name in plan.configs}
    results: list[MeasureResult] = []  # stock's own noise is measured in the first
    size = plan.num_units * unit_size(plan.concurrency)
    chunks = in_pieces(plan.requests, size, plan.concurrency)
    with counted("measuring", len(chunks)) as step:
        for number, chunk in enumerate(chunks):
            first = results[0] if results else None
            result = _measure(plan, executor, number, chunk, first)
            results.append(result)
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
            step()
    turns = native_turns(results)
    rows = [_row(name, plan.configs[name], found) for name, found in evidence.items()]
    lossy = [row["name"] for row in rows if not row["lossless"]]
    return {
        "target": asdict(plan.target),
        "num_prompts": len(plan.requests),
        "concurrency": plan.concurrency,
        "repeats": plan.repeats,
        "stock_tokens_per_s": speeds(turns[STOCK])["tokens_per_s"],
        "stock": speeds(turns[STOCK]),
        "configurations": [
            {**row, "decode_tokens_per_s": speeds(turns[row["name"]])["decode_tokens_per_s"]}
            for row in rows
        ],
        "peers": peer_rows(results, plan.peers, lossy),
        "notes": list(dict.fromkeys(r.kernel_note for r in results if r.kernel_note)),
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
        kind = CliInputError if result and result.refused else CliEnvironmentError
        raise kind(f"the configurations could not be measured ({what})")
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
