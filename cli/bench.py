"""``draftsmith bench``: stock against configurations, interleaved in time, every output judged."""

from __future__ import annotations

from typing import Annotated

import typer

from draftsmith.cli import options as opt
from draftsmith.cli.bench_report import draw
from draftsmith.cli.comparison import Plan, compare
from draftsmith.cli.configs import (
    Choice,
    foreign_target,
    open_bundle,
    override,
    read_knobs,
    resolve,
    sampling_of,
    target_of,
)
from draftsmith.cli.errors import CliInputError
from draftsmith.cli.output import Output, tell, with_note
from draftsmith.cli.peers import peers_of
from draftsmith.cli.step_report import measure_steps
from draftsmith.cli.values import number
from draftsmith.cli.wiring import Placement, open_executor
from draftsmith.engine.job import DraftInputs, TargetRef
from draftsmith.engine.types import Request, Sampling, SpecConfig
from draftsmith.engine.units import two_units
from draftsmith.tuner.agents.rules import starting_points
from draftsmith.tuner.deployment import FAMILIES, Deployment, Regime, WorkloadSpec
from draftsmith.tuner.deployment_file import Key
from draftsmith.tuner.material import Material, load_material
from draftsmith.tuner.space import config_text
from draftsmith.workers.peers.catalogue import parse_peers

EXAMPLES = """Examples:

draftsmith bench --target smollm2 --workload builtin --limit 12

draftsmith bench --bundle runs/demo/ngram-1a2b3c4d --workload prompts.jsonl

draftsmith bench --target ./my-model --workload prompts.jsonl --knobs '{"drafter": "ngram"}'

draftsmith bench --target smollm2 --workload builtin --peer transformers --steps

draftsmith bench --target ./my-model --workload prompts.jsonl --peer vllm --peer-python vllm=PATH"""

_REPEATS = Key(kind="int", low=1, high=1000, help="times that each prompt runs")
_TIMEOUT = Key(kind="float", low=1, high=86_400, help="seconds for one answer of a peer")


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
    repeats: Annotated[
        int, typer.Option(parser=number("--repeats", _REPEATS), help="Times that each prompt runs.")
    ] = 1,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            help="Another engine to time in turns with ours: transformers, llama-cpp-python or "
            "vllm, with settings as in 'transformers:{\"prompt_lookup_num_tokens\": 10}'; "
            "repeatable.",
            metavar="NAME[:JSON]",
            rich_help_panel="Peers",
        ),
    ] = None,
    peer_python: Annotated[
        list[str] | None,
        typer.Option(
            "--peer-python",
            help="The Python that has a peer; else the one that runs draftsmith. Repeatable.",
            metavar="NAME=PATH",
            rich_help_panel="Peers",
        ),
    ] = None,
    peer_timeout: Annotated[
        float,
        typer.Option(
            parser=number("--peer-timeout", _TIMEOUT),
            help="Seconds for one answer of a peer, loading too.",
            metavar="SECONDS",
            rich_help_panel="Peers",
        ),
    ] = 600.0,
    steps: Annotated[
        bool, typer.Option("--steps", help="Also time a verify step by rows, and its parts.")
    ] = False,
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
    weights: opt.WeightsOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Compare stock with a bundle, with --knobs, or else with one configuration of each drafter.

    Conversations are measured on their first turn. Only times of equal outputs count. Peers answer
    the same prompts, greedily; each is stopped while another is timed.
    """
    specs = parse_peers(peer or [], peer_python or [])
    choice: Choice = open_bundle(bundle) if bundle is not None else {}
    flags = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k}
    flags |= {"top_p": top_p, "min_p": min_p, "seed": seed}
    placement = Placement(
        path=target, dtype=dtype, device=device, num_threads=threads, weights=weights
    )
    ref = placement.apply(target_of(choice, target))
    if workload is None:
        raise CliInputError("--workload is missing: give a file of prompts, or builtin")
    prompts = WorkloadSpec(path=workload, limit=limit, skip_bad_rows=bool(skip_bad_rows))
    sampling = override(sampling_of(choice), flags)
    material = _material(ref, prompts, draft_model, sampling)
    tell(foreign := foreign_target(choice, ref))
    concurrency = concurrency or _concurrency(choice)
    requests = _requests(material, concurrency)
    configs, inputs = _configs(material, choice, knobs or [])
    if not inputs.draft_vocab_ids:
        inputs = DraftInputs(draft_vocab_ids=material.ranking(requests, {}))
    with peers_of(specs, ref, requests, concurrency, peer_timeout) as peers:
        plan = Plan(
            target=ref,
            requests=requests,
            configs=configs,
            inputs=inputs,
            concurrency=concurrency,
            repeats=repeats,
            peers=peers,
        )
        with open_executor(ref.device, in_process=True, rivals=peers) as executor:
            document = with_note(compare(plan, executor), material.skipped_note)
            document = with_note(document, material.too_long_note)
            document = with_note(document, foreign)
    if steps:
        document["steps"] = measure_steps(ref, requests, configs, inputs)
    Output(as_json).report(document, lambda console: draw(console, document))


def _material(
    ref: TargetRef, prompts: WorkloadSpec, draft_model: str | None, sampling: Sampling
) -> Material:
    """All prompts of the workload: nothing is held out here, so the parts may be of any size."""
    return load_material(
        Deployment(
            target=ref,
            workload=prompts,
            drafters=FAMILIES if draft_model else tuple(f for f in FAMILIES if f != "draft_model"),
            draft_model=draft_model,
            regime=Regime(sampling=sampling),
        )
    )


def _requests(material: Material, concurrency: int) -> list[Request]:
    """First turns; CliInputError when they are fewer than two timed groups at the concurrency."""
    asked = (material.request(prompt, 0, {}) for prompt in material.tuning + material.heldout)
    requests = [request for request in asked if request is not None]
    needed = two_units(concurrency)
    if len(requests) < needed:
        raise CliInputError(
            f"the workload gives {len(requests)} prompts: at concurrency {concurrency} at least "
            f"{needed} are needed, two groups of requests; raise --limit, add prompts, or lower "
            "--concurrency"
        )
    return requests


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
