"""``draftsmith show``: what the store holds."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftsmith.cli.environment import read_environment
from draftsmith.cli.options import JsonOption, StoreOption
from draftsmith.cli.output import Output, facts, table
from draftsmith.cli.report import draw_bundle, draw_result, draw_trials
from draftsmith.cli.wiring import existing_store
from draftsmith.store.bundle import read_bundle
from draftsmith.store.records import RunRecord, TrialRecord
from draftsmith.store.repository import Repository
from draftsmith.tuner.space import config_text, knob_table, validate

EXAMPLES = """Examples:

draftsmith show

draftsmith show latest --trials

draftsmith show runs/demo/BUNDLE

draftsmith show knobs"""

_Subject = Annotated[
    str | None,
    typer.Argument(
        help="A run's uuid (or its beginning), latest, a bundle's folder, or knobs.",
        metavar="[RUN|BUNDLE|knobs]",
    ),
]


def show(
    subject: _Subject = None,
    trials: Annotated[
        bool, typer.Option("--trials", help="List every trial, not only the best.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show runs, one run with its verdict and trials, a bundle, or the table of knobs."""
    output = Output(as_json)
    if subject == "knobs":
        rows = knob_table()
        output.report(
            rows,
            lambda console: console.print(
                table(list(rows[0]), (list(row.values()) for row in rows))
            ),
        )
        return
    if subject is not None and Path(subject).is_dir():
        _show_bundle(output, Path(subject))
        return
    with existing_store(store or read_environment().store) as repository:
        if subject is None:
            _show_runs(output, repository.runs())
        else:
            _show_run(output, repository, find_run(repository, subject), trials)


def find_run(repository: Repository, subject: str) -> RunRecord:
    """The run that ``latest``, a uuid or the beginning of one names."""
    return repository.run(subject)


def _show_runs(output: Output, runs: list[RunRecord]) -> None:
    documents = [_run_document(run) for run in runs]

    def render(console: Console) -> None:
        rows = [
            (r["uuid"], r["began"], r["state"], r["stage"], r["target"], r["verdict"])
            for r in documents
        ]
        console.print(table(("run", "began", "state", "stage", "target", "verdict"), rows))

    output.report(documents, render)


def _show_run(output: Output, repository: Repository, run: RunRecord, every: bool) -> None:
    records = repository.trials(run.id) if every else repository.leaderboard(run.id)
    listed = [_trial_document(record) for record in records]
    counts = asdict(repository.counts(run.id))
    bundles = [asdict(bundle) for bundle in repository.bundles(run.id)]
    document = {
        **_run_document(run),
        "result": run.verdict,
        "counts": counts,
        "trials": listed,
        "bundles": bundles,
    }

    def render(console: Console) -> None:
        if run.verdict is not None:
            draw_result(console, run.verdict)
        else:
            numbers = ", ".join(f"{value} {name}" for name, value in counts.items())
            console.print(
                facts(
                    [
                        ("run", run.uuid),
                        ("state", run.state),
                        ("stage", run.stage),
                        ("trials", numbers),
                    ]
                )
            )
        console.print()
        draw_trials(console, listed, "all trials" if every else "best trials")

    output.report(document, render)


def _show_bundle(output: Output, folder: Path) -> None:
    bundle = read_bundle(folder)
    parts = bundle.parts
    document = {
        **asdict(bundle.record),
        "versions": bundle.versions,
        "deployment": parts.deployment,
        "config": parts.config,
        "evidence": parts.evidence,
        "num_outputs": len(parts.outputs),
    }
    output.report(document, lambda console: draw_bundle(console, document))


def _run_document(run: RunRecord) -> dict[str, Any]:
    target = run.deployment.description.get("target", {})
    return {
        "uuid": run.uuid,
        "began": _moment(run.created_at),
        "state": run.state,
        "stage": run.stage,
        "target": str(target.get("checkpoint", "-"))[:24],
        "deployment": run.deployment.description,
        "verdict": (run.verdict or {}).get("verdict"),
    }


def _moment(seconds: float) -> str | None:
    """Local time; None for a number that no calendar holds."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return None


def _trial_document(trial: TrialRecord) -> dict[str, Any]:
    kept = (
        *("number", "stage", "rung", "state", "score", "score_low", "score_high", "feasible"),
        *("reason", "attempt", "proposer", "why", "config", "summary"),
    )
    document = {name: getattr(trial, name) for name in kept}
    return {**document, "config_text": config_text(validate(trial.config))}
