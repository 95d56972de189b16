"""Options that several commands share, written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftsmith.cli.values import named, number, path


class Dtype(StrEnum):
    """Numbers that the target runs in."""

    bfloat16 = "bfloat16"
    float32 = "float32"
    float16 = "float16"


class Weights(StrEnum):
    """Form of bf16 weights in memory."""

    auto = "auto"
    plain = "plain"
    bf12 = "bf12"


_MODEL, _WORK, _SAMPLING = "Model and machine", "Workload", "Sampling"
_MACHINE, _STORE = "Model and machine", "Store and output"

TargetOption = Annotated[
    str | None,
    typer.Option(
        help="Checkpoint folder, GGUF file, Hugging Face id, or smollm2 (the embedded model).",
        metavar="PATH",
        parser=named("--target"),
        rich_help_panel=_MODEL,
    ),
]
DtypeOption = Annotated[
    Dtype | None, typer.Option(help="Numbers the target runs in.", rich_help_panel=_MACHINE)
]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="cpu, cuda or cuda:N.", metavar="NAME", rich_help_panel=_MACHINE),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        parser=number("--threads", "target.num_threads"),
        help="CPU threads of one worker.",
        metavar="N",
        rich_help_panel=_MACHINE,
    ),
]
WeightsOption = Annotated[
    Weights | None,
    typer.Option(
        help="bf16 weights in memory: bf12 takes 12 bits for the same outputs, auto where it pays.",
        rich_help_panel=_MACHINE,
    ),
]
DraftModelOption = Annotated[
    str | None,
    typer.Option(
        help="Folder of a small model with the target's vocabulary.",
        metavar="DIR",
        parser=named("--draft-model"),
        rich_help_panel=_MODEL,
    ),
]
WorkloadOption = Annotated[
    str | None,
    typer.Option(
        help="JSONL, ShareGPT or OpenAI batch file of prompts, or builtin.",
        metavar="FILE",
        parser=named("--workload"),
        rich_help_panel=_WORK,
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        parser=number("--limit", "workload.limit"),
        help="Prompts to use at most, spread over categories; 2 or more.",
        metavar="N",
        rich_help_panel=_WORK,
    ),
]
SkipBadRowsOption = Annotated[
    bool | None,
    typer.Option(
        "--skip-bad-rows/--refuse-bad-rows",
        help="Leave out and count rows that cannot be read; else they are refused by line.",
        rich_help_panel=_WORK,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        parser=number("--concurrency", "regime.concurrency"),
        help="Requests running together, 1 to 256.",
        metavar="N",
        rich_help_panel=_WORK,
    ),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        parser=number("--max-tokens", "regime.max_tokens"),
        help="Output tokens a request.",
        metavar="N",
        rich_help_panel=_SAMPLING,
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        parser=number("--temperature", "regime.temperature"),
        help="0 to 100; 0 is greedy.",
        metavar="X",
        rich_help_panel=_SAMPLING,
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        parser=number("--top-k", "regime.top_k"),
        help="0 is off.",
        metavar="N",
        rich_help_panel=_SAMPLING,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        parser=number("--top-p", "regime.top_p"),
        help="More than 0, at most 1; 1 is off.",
        metavar="X",
        rich_help_panel=_SAMPLING,
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        parser=number("--min-p", "regime.min_p"),
        help="0 to 1; 0 is off.",
        metavar="X",
        rich_help_panel=_SAMPLING,
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        parser=number("--seed", "regime.seed"),
        help="Seed of sampling; tune also searches with it.",
        metavar="N",
        rich_help_panel=_SAMPLING,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        help="The store: a file or SQLAlchemy URL; else $DRAFTSMITH_STORE, runs/draftsmith.db.",
        metavar="FILE|URL",
        rich_help_panel=_STORE,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON document on stdout; progress stays on stderr.",
        rich_help_panel=_STORE,
    ),
]
KnobsOption = Annotated[
    str | None,
    typer.Option(
        "--knobs",
        help='A configuration as JSON, or a file of it: \'{"drafter": "ngram", "block_size": 4}\'.',
        metavar="JSON|FILE",
    ),
]
BundleOption = Annotated[
    Path | None,
    typer.Option(
        parser=path("--bundle"), help="A bundle that tune or export wrote.", metavar="DIR"
    ),
]
