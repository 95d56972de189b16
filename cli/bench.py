"""``draftsmith bench``: stock against configurations, interleaved in time, every output judged."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from draftsmith.cli import options as opt
from draftsmith.cli.comparison import Plan, compare
from draftsmith.cli.configs import Choice, override, read_knobs, resolve, sampling_of, target_of
from draftsmith.cli.errors import CliInputError
from draftsmith.cli.output import Output, draw_notes, ratio_text, table, with_note
from draftsmith.cli.wiring import Placement, open_executor
from draftsmith.engine.job import DraftInputs
from draftsmith.engine.types import SpecConfig
from draftsmith.store.bundle import read_bundle
from draftsmith.tuner.agents.rules import starting_points
from draftsmith.tuner.deployment import FAMILIES, Deployment, Regime, WorkloadSpec
from draftsmith.tuner.material import Material, load_material
from draftsmith.tuner.space import config_text

EXAMPLES = """Examples:

draftsmith bench --target smollm2 --workload builtin --limit 12

draftsmith bench --bundle runs/demo/ngram-1a2b3c4d --workload prompts.jsonl

draftsmith bench --target ./my-model --workload prompts.jsonl --knobs '{"drafter": "ngram"}'"""


def bench(
    target: opt.TargetOption = None,
    workload: opt.WorkloadOption = None,
    bundle: opt.BundleOption = None,
    knobs: Annotated[
        list[str] | None,
        typer.Option("--knobs", help="A configuration as JSON, or a file of it; repeatable."),
    ] = None,
    limit: opt.LimitOption = None,
    skip_bad_rows: opt.SkipBadRowsOption = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times that each prompt runs.")] = 1,
    draft_model: opt.DraftModelOption = None,
    concurrency: opt.ConcurrencyOption = None,
    max_tokens: opt.MaxTokensOption = None,
    temperature: opt.TemperatureOption = None,
    top_k: opt.TopKOption = None,
    top_p: opt.TopPOption = None,
    min_p: opt.MinPOption = None,
    seed: opt.SeedOption = None,
    dtype: opt.DtypeOption = None,
    device: opt.DeviceOption = None,
    threads: opt.ThreadsOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Compare stock with a bundle, with --knobs, or else with one configuration of each drafter.

    Conversations are measured on their first turn. Only times of equal outputs count.
    """
    choice: Choice = read_bundle(bundle) if bundle is not None else {}
    flags = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k}
    flags |= {"top_p": top_p, "min_p": min_p, "seed": seed}
    placement = Placement(path=target, dtype=dtype, device=device, num_threads=threads)
    ref = placement.apply(target_of(choice))
    if workload is None:
        raise CliInputError("--workload is missing: give a file of prompts, or builtin")
    concurrency = concurrency or _concurrency(choice)
    deployment = Deployment(
        target=ref,
        workload=WorkloadSpec(path=workload, limit=limit, skip_bad_rows=bool(skip_bad_rows)),
        drafters=FAMILIES if draft_model else tuple(f for f in FAMILIES if f != "draft_model"),
        draft_model=draft_model,
        regime=Regime(concurrency=concurrency, sampling=override(sampling_of(choice), flags)),
    )
    material = load_material(deployment)
    asked = (material.request(prompt, 0, {}) for prompt in material.tuning + material.heldout)
    requests = [request for request in asked if request is not None]
    configs, inputs = _configs(material, choice, knobs or [])
    if not inputs.draft_vocab_ids:
        inputs = DraftInputs(draft_vocab_ids=material.ranking(requests, {}))
    plan = Plan(
        target=ref,
        requests=requests,
        configs=configs,
        inputs=inputs,
        concurrency=concurrency,
        repeats=repeats,
    )
    with open_executor(ref.device, in_process=True) as executor:
        document = with_note(compare(plan, executor), material.skipped_note)
    Output(as_json).report(document, lambda console: _draw(console, document))


def _configs(
    material: Material, choice: Choice, knobs: list[str]
) -> tuple[dict[str, SpecConfig], DraftInputs]:
    """Configurations by name, each once, and a bundle's frozen inputs."""
    found: list[SpecConfig] = []
    inputs = DraftInputs()
    if not isinstance(choice, dict):
        chosen = resolve(choice, material.facts)
        found.append(chosen.config)
        inputs = chosen.inputs
    found += [resolve(read_knobs(text), material.facts).config for text in knobs]
    if not found:
        first = {
            point.config.drafter: point.config
            for point in reversed(starting_points(material.facts))
        }
        found = list(reversed(first.values()))
    return {config_text(config): config for config in found}, inputs


def _concurrency(choice: Choice) -> int:
    return 1 if isinstance(choice, dict) else int(choice.parts.evidence.get("concurrency", 1))


def _draw(console: Console, document: dict[str, Any]) -> None:
    rows: list[tuple[object, ...]] = [
        ("stock", f"{document['stock_tokens_per_s']:.1f}", "1.00x", "1.00x", "1.00", "")
    ]
    for row in document["configurations"]:
        per_step = row["tokens_per_step"]
        judged = (
            f"{row['num_exact']} exact, {row['num_ties']} ties, {row['num_divergent']} divergent"
        )
        rows.append(
            (
                row["config_text"],
                "-" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:.1f}",
                _ratio(row["ratio"]),
                _ratio(row["decode_ratio"]),
                "-" if per_step is None else f"{per_step:.2f}",
                judged if row["lossless"] else f"LOSSY: {judged}; {row['divergence']}",
            )
        )
    columns = (
        "configuration",
        ">tokens/s",
        ">over stock (95 %)",
        ">decode only",
        ">tokens/step",
        "outputs",
    )
    console.print(table(columns, rows))
    console.print(
        f"{document['num_prompts']} prompts, {document['concurrency']} together, "
        f"{document['repeats']} times, interleaved with stock"
    )
    draw_notes(console, document)


def _ratio(interval: dict[str, Any] | None) -> str:
    if interval is None:
        return "-"
    return ratio_text(interval["ratio"], interval["low"], interval["high"])
