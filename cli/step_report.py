"""``bench --steps``: what a verify step costs by rows, and where a decoding step's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from draftsmith.cli.output import table
from draftsmith.cli.wiring import load_engine
from draftsmith.engine.job import DraftInputs, TargetRef
from draftsmith.engine.model.loading import load_target
from draftsmith.engine.model.locating import resolve_device
from draftsmith.engine.step_costs import BATCHES, ROWS, measure_floor, step_table
from draftsmith.engine.step_parts import step_parts
from draftsmith.engine.timing import MonotonicClock
from draftsmith.engine.types import Request, SpecConfig

PARTS_REQUESTS = 4  # requests that the parts of a step are taken from
PARTS_TOKENS = 64  # their length at most


def measure_steps(
    ref: TargetRef,
    requests: Sequence[Request],
    configs: Mapping[str, SpecConfig],
    inputs: DraftInputs,
) -> dict[str, Any]:
    """The table T(B, n), the floor, and the parts of a step under stock and each configuration."""
    model = load_engine(ref).target.model
    clock = MonotonicClock(resolve_device(ref.device))
    floor = measure_floor(model, clock)
    costs = step_table(model, clock)
    short = [_shortened(request) for request in requests[:PARTS_REQUESTS]]
    parts = step_parts(
        model,
        short,
        configs,
        clock,
        inputs=inputs,
        load_draft_model=lambda path: load_target(ref.draft(path)).model,
    )
    return {
        "floor": {**asdict(floor), "layers_s": floor.layers_s, "head_s": floor.head_s},
        "table": [asdict(cost) for cost in costs],
        "parts": {
            name: {**asdict(part), "host_s": part.host_s, "host_share": part.host_s / part.step_s}
            for name, part in parts.items()
        },
    }


def draw_steps(console: Console, steps: Mapping[str, Any]) -> None:
    """Both tables in milliseconds, and the floor in words."""
    cells = {(cost["batch"], cost["rows"]): cost for cost in steps["table"]}
    rows = [
        (batch, *(_pair(cells[batch, count]) for count in ROWS if (batch, count) in cells))
        for batch in BATCHES
    ]
    console.print()
    columns = ("batch", *(f">{count} rows" for count in ROWS))
    console.print(table(columns, rows, "verify step, ms: layers + head (rows of each request)"))
    console.print(floor_text(steps), markup=False, soft_wrap=True)
    console.print()
    columns = ("configuration", ">step", ">layers", ">head", ">draft model", ">host", ">host share")
    console.print(table(columns, parts_rows(steps), "parts of a decoding step, one request, ms"))


def parts_rows(steps: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row a configuration: the parts of a step in milliseconds, and the host's share."""
    return [
        (
            name,
            *(_ms(part[f"{key}_s"]) for key in ("step", "layers", "head", "draft", "host")),
            f"{part['host_share']:.1%}",
        )
        for name, part in steps["parts"].items()
    ]


def floor_text(steps: Mapping[str, Any]) -> str:
    """How a step of one row stands to reading every weight once."""
    floor = steps["floor"]
    one = next(cost for cost in steps["table"] if (cost["batch"], cost["rows"]) == (1, 1))
    layers, head = floor["layers_s"] / one["layers_s"], floor["head_s"] / one["head_s"]
    both = (floor["layers_s"] + floor["head_s"]) / (one["layers_s"] + one["head_s"])
    return (
        f"floor of one row: layers {_ms(floor['layers_s'])} + head {_ms(floor['head_s'])} ms"
        f" (weights once at {floor['bytes_per_s'] / 1e9:.1f} GB/s read); the step reaches"
        f" {layers:.0%} of it in the layers, {head:.0%} in the head, {both:.0%} in all;"
        f" fp32 product peak {floor['flops_per_s'] / 1e9:.0f} GFLOP/s"
    )


def _shortened(request: Request) -> Request:
    sampling = request.sampling
    limit = min(sampling.max_tokens, PARTS_TOKENS)
    return replace(request, sampling=replace(sampling, max_tokens=limit))


def _pair(cost: Mapping[str, Any]) -> str:
    return f"{_ms(cost['layers_s'])} + {_ms(cost['head_s'])}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds >= 1e-3 else f"{seconds * 1e3:.2f}"
