"""``draftsmith export``: the winner of a stored run, or a bundle, in the form an engine takes."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from draftsmith.cli.environment import read_environment
from draftsmith.cli.errors import CliInputError
from draftsmith.cli.options import JsonOption, StoreOption
from draftsmith.cli.output import Output, facts
from draftsmith.cli.show import find_run
from draftsmith.cli.values import named, path
from draftsmith.cli.wiring import existing_store
from draftsmith.store.bundle import read_bundle
from draftsmith.store.exports.native import export_native

EXAMPLES = """Examples:

draftsmith export latest --out winner

draftsmith export runs/demo/ngram-1a2b3c4d --format native --out winner"""

FORMATS = ("native",)


def export(
    source: Annotated[
        str,
        typer.Argument(
            parser=named("RUN|BUNDLE"),
            help="A run's uuid (or its beginning), latest, or a bundle's folder.",
            metavar="RUN|BUNDLE",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            parser=path("--out", written=True),
            help="Folder to write; it must not exist.",
            metavar="DIR",
        ),
    ],
    format: Annotated[str, typer.Option(help=f"One of: {', '.join(FORMATS)}.")] = "native",
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of a bundle at --out.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a run's bundle, checked against the checksum that the store remembers."""
    if format not in FORMATS:
        raise CliInputError(
            f"format {format!r} is not written by this version: use {', '.join(FORMATS)}"
        )
    bundle = Path(source) if Path(source).is_dir() else _stored(source, store)
    record = export_native(bundle, out, replace=replace)
    pairs = [("bundle", record.path), ("sha256", record.checksum)]
    pairs.append(("next", f"draftsmith verify {shlex.quote(record.path)}"))
    Output(as_json).report(asdict(record), lambda console: console.print(facts(pairs)))


def _stored(source: str, store: str | None) -> Path:
    """The newest bundle of a run; CliInputError when it has none or it is not the one written."""
    with existing_store(store or read_environment().store) as repository:
        run = find_run(repository, source)
        bundles = repository.bundles(run.id)
    if not bundles:
        raise CliInputError(f"run {run.uuid} ({run.state}) has no bundle: let tune finish it")
    newest = bundles[-1]
    if read_bundle(newest.path).record.checksum != newest.checksum:
        raise CliInputError(
            f"{newest.path} is not the bundle that run {run.uuid} wrote: its checksum differs; "
            "give the folder itself to export it all the same"
        )
    return Path(newest.path)
