"""``draftsmith tune``: one command from a deployment to a verdict and a bundle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftsmith.cli import options as opt
from draftsmith.cli.environment import read_environment
from draftsmith.cli.errors import CliEnvironmentError, CliInputError
from draftsmith.cli.fixed import fixed_flags
from draftsmith.cli.output import Output, draw_notes, with_note
from draftsmith.cli.plan import draw_plan, make_plan
from draftsmith.cli.progress import TuneProgress
from draftsmith.cli.report import draw_result
from draftsmith.cli.show import find_run
from draftsmith.cli.values import number, path
from draftsmith.cli.wiring import LOCAL, kernel_note, open_executor, open_store
from draftsmith.store.database import optuna_storage
from draftsmith.tuner.controller import RunOptions
from draftsmith.tuner.controller import tune as run_tuner
from draftsmith.tuner.deployment import FAMILIES
from draftsmith.tuner.deployment_file import load_deployment
from draftsmith.tuner.incumbent import read_incumbent
from draftsmith.tuner.material import check_incumbent, load_material

EXAMPLES = """Examples:

draftsmith tune --target smollm2 --workload builtin --budget 10m

draftsmith tune --target ./my-model --workload prompts.jsonl --device cuda --concurrency 8

draftsmith tune --config deployment.yaml --temperature 0.8 --seed 1 --json

draftsmith tune --config deployment.yaml --fix tree=chain --fix skip_layers=2,3 --dry-run

The same command resumes a run that was interrupted; --fresh starts a new one."""

_SEARCH = "Search"


def _option(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=_SEARCH, **more)


def _limited(help: str, option: str, key: str, metavar: str) -> Any:
    return _option(help, metavar, parser=number(option, key))


def tune(
    target: opt.TargetOption = None,
    workload: opt.WorkloadOption = None,
    config: Annotated[
        Path | None,
        _option("Deployment as YAML; flags override it.", "FILE", parser=path("--config")),
    ] = None,
    budget: Annotated[str | None, _option("Time for the whole run: 10m, 1h30m.", "TIME")] = None,
    max_trials: Annotated[
        int | None,
        _limited("Configurations to measure at most.", "--max-trials", "max_trials", "N"),
    ] = None,
    drafters: Annotated[
        str | None, _option(f"Families to search, with commas: {', '.join(FAMILIES)}.", "A,B")
    ] = None,
    draft_model: opt.DraftModelOption = None,
    fix: Annotated[
        list[str] | None,
        _option("Hold a knob at a value instead of searching it; repeatable.", "KNOB=VALUE"),
    ] = None,
    incumbent: Annotated[
        Path | None,
        _option(
            "What you run today: a bundle, or a config as JSON.", "FILE", parser=path("--incumbent")
        ),
    ] = None,
    heldout: Annotated[
        float | None,
        _limited(
            "Share of the prompts kept for confirming.",
            "--heldout",
            "workload.heldout_fraction",
            "X",
        ),
    ] = None,
    limit: opt.LimitOption = None,
    skip_bad_rows: opt.SkipBadRowsOption = None,
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
    ray_address: Annotated[
        str, _option("A Ray cluster's address, or local for one of its own.", "ADDRESS")
    ] = LOCAL,
    in_process: Annotated[
        bool, _option("Measure in this process, without Ray.", None, "--in-process")
    ] = False,
    store: opt.StoreOption = None,
    out: Annotated[
        Path, _option("Folder for the bundle.", "DIR", parser=path("--out", written=True))
    ] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on with an earlier run of this deployment.")
    ] = True,
    run: Annotated[
        str | None, _option("Go on with this run (latest, or a uuid's beginning).", "RUN")
    ] = None,
    dry_run: Annotated[
        bool, _option("Time stock, print plan, trials and minutes.", None, "--dry-run")
    ] = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Find the fastest configuration whose outputs stay unchanged, confirm it, write its bundle."""
    flags: Mapping[str, Any] = {
        "target.path": target,
        "target.dtype": dtype,
        "target.device": device,
        "target.num_threads": threads,
        "target.weights": weights,
        "workload.path": workload,
        "workload.limit": limit,
        "workload.heldout_fraction": heldout,
        "workload.skip_bad_rows": skip_bad_rows,
        "budget": budget,
        "max_trials": max_trials,
        "drafters": drafters and [name.strip() for name in drafters.split(",") if name.strip()],
        "draft_model": draft_model,
        "regime.concurrency": concurrency,
        "regime.max_tokens": max_tokens,
        "regime.temperature": temperature,
        "regime.top_k": top_k,
        "regime.top_p": top_p,
        "regime.min_p": min_p,
        "regime.seed": seed,
        "seed": None if seed is None else seed % 2**31,  # the search's: numpy takes no more
        **fixed_flags(fix or ()),
    }
    if in_process and ray_address != LOCAL:
        raise CliInputError("--in-process runs without Ray: drop it, or drop --ray-address")
    if run is not None and (not run or not resume):
        raise CliInputError(
            f"--run {run!r} goes on with a stored run: give its uuid (draftsmith show lists "
            "them) or latest without --fresh, or drop --run"
        )
    _check_out(out)
    deployment = load_deployment(config, flags)
    material = load_material(deployment)
    output = Output(as_json)
    if dry_run:
        known = read_incumbent(incumbent, material.facts) if incumbent else None
        if known is not None:
            check_incumbent(known.config, material)
        plan = with_note(make_plan(material, known), material.skipped_note)
        plan = with_note(plan, kernel_note(deployment.target.device))
        output.report(plan, lambda console: _draw_plan(console, plan))
        return
    with open_store(store or read_environment().store) as (database, repository):
        device_name = deployment.target.device
        with open_executor(device_name, in_process=in_process, ray_address=ray_address) as executor:
            options = RunOptions(
                bundle_root=out,
                resume=resume if run is None else find_run(repository, run).uuid,
                incumbent=incumbent,
                optuna=optuna_storage(database),
                material=material,
            )
            with TuneProgress(deployment.effort.budget_s) as progress:
                result = run_tuner(deployment, repository, executor, options, progress)
    document = result.to_json()
    output.report(document, lambda console: draw_result(console, document))


def _check_out(folder: Path) -> None:
    """Refuse at once a folder that the bundle could not be written to at the end."""
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise CliInputError(f"--out {folder}: {place} is not a folder; give one for the bundle")
    if not os.access(place, os.W_OK | os.X_OK):
        raise CliEnvironmentError(
            f"--out {folder}: {place} may not be written by this user; give another folder"
        )


def _draw_plan(console: Console, plan: dict[str, Any]) -> None:
    draw_plan(console, plan)
    draw_notes(console, plan)
