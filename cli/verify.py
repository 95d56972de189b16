"""``draftsmith verify``: token forcing on a bundle or on any file of outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftsmith.cli import options as opt
from draftsmith.cli.configs import (
    Choice,
    by_law,
    foreign_target,
    override,
    resolve,
    sampling_of,
    target_of,
)
from draftsmith.cli.errors import VERIFY_FAILED, CliInputError
from draftsmith.cli.judge import judge
from draftsmith.cli.output import Output, facts, table, tell, with_note
from draftsmith.cli.outputs_file import Answered, Reading, read_outputs, read_rows
from draftsmith.cli.values import path
from draftsmith.cli.wiring import Placement, Running, load_engine
from draftsmith.engine.forcing import EmittedOutput
from draftsmith.store.bundle import Bundle, read_bundle

EXAMPLES = """Examples:

draftsmith verify runs/demo/ngram-1a2b3c4d

draftsmith verify runs/demo/ngram-1a2b3c4d --decode

draftsmith verify outputs.jsonl --target ./my-model --temperature 0.8

A row of a file: {"prompt": "Once", "token_ids": [28, 339], "stop_reason": "length", "seed": 7}"""

SHOWN = 20  # verdicts that the table lists; all are in --json


def verify(
    subject: Annotated[
        Path,
        typer.Argument(
            parser=path("BUNDLE|OUTPUTS"),
            help="A bundle's folder, or JSON lines of outputs.",
            metavar="BUNDLE|OUTPUTS",
        ),
    ],
    target: opt.TargetOption = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Decode a bundle's prompts again here, and judge that.")
    ] = False,
    distribution: Annotated[
        bool,
        typer.Option(
            "--distribution", help="Outputs sampled without our noise: judge the law only."
        ),
    ] = False,
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
    """Prove outputs equal to stock's, token by token. Exit code 1 when they are not lossless."""
    bundle = read_bundle(subject) if subject.is_dir() else None
    if decode and bundle is None:
        raise CliInputError("--decode needs a bundle: a file of outputs has no configuration")
    flags = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k}
    flags |= {"top_p": top_p, "min_p": min_p, "seed": seed}
    given = [name for name, value in flags.items() if value is not None]
    if bundle is not None and given:
        raise CliInputError(
            f"--{given[0].replace('_', '-')} cannot change a bundle: each output is judged with "
            "the sampling that it was made with; drop the option, or tune with it"
        )
    choice: Choice = bundle or {}
    placement = Placement(
        path=target, dtype=dtype, device=device, num_threads=threads, weights=weights
    )
    ref = placement.apply(target_of(choice, target))
    if bundle is None:
        _check_file(subject)
    running = load_engine(ref)
    tell(foreign := foreign_target(choice, ref))
    tell(running.kernel_note)
    info = running.target.model.info
    reading = Reading(
        tokenizer=running.tokenizer,
        sampling=override(sampling_of(choice), flags),
        eos_token_ids=info.eos_token_ids,
        vocab_size=info.vocab_size,
        max_positions=info.max_positions,
        limited=max_tokens is not None,
    )
    if bundle is None:
        answered = read_outputs(subject, reading)
    else:
        answered = read_rows(bundle.parts.outputs, reading)
        if not answered:
            raise CliInputError(f"{subject} holds no outputs: write the bundle again with tune")
        rule = bundle.parts.config.get("verifier", "coupled")
        distribution = distribution or by_law(rule, reading.sampling.temperature)
        answered = _decoded(running, bundle, answered) if decode else answered
    judgements = judge(running, answered, in_distribution=distribution)
    document = {"subject": str(subject), "target": ref.path, **judgements.to_json()}
    document = with_note(with_note(document, foreign), running.kernel_note)
    Output(as_json).report(document, lambda console: _draw(console, document))
    if not judgements.lossless:
        raise typer.Exit(VERIFY_FAILED)


def _check_file(subject: Path) -> None:
    """Refuse what is neither a file nor a pipe, such as ``<(...)`` gives."""
    if not subject.exists():
        raise CliInputError(f"{subject} does not exist: give a bundle's folder or outputs")
    if not subject.is_file() and not subject.is_fifo():
        raise CliInputError(
            f"{subject} is a device or a socket: give a bundle's folder, a file or a "
            "pipe of outputs"
        )


def _decoded(running: Running, bundle: Bundle, answered: list[Answered]) -> list[Answered]:
    """The same requests, decoded here with the bundle's configuration."""
    temperature = answered[0].request.sampling.temperature
    chosen = resolve(bundle, running.facts(temperature))
    requests = [item.request for item in answered]
    made = running.engine.run(
        requests,
        chosen.config,
        concurrency=int(bundle.parts.evidence.get("concurrency", 1)),
        inputs=chosen.inputs,
    )
    return [
        Answered(request, EmittedOutput(request.request_id, done.token_ids, done.stop_reason))
        for request, done in zip(requests, made.completions, strict=True)
    ]


def _draw(console: Console, document: dict[str, Any]) -> None:
    counts = ", ".join(f"{value} {name}" for name, value in document["counts"].items())
    noise = document["margin_noise"]
    console.print(
        facts(
            [
                ("verdict", document["verdict"]),
                ("outputs", f"{document['num_outputs']}: {counts}"),
                ("positions", f"{document['num_positions']}, {document['num_ties']} ties"),
                ("margin noise", "not measured" if noise is None else f"{noise:.3g} logits"),
            ]
        )
    )
    rows = [
        (
            row["request_id"],
            row["judgement"],
            row["num_positions"],
            row["position"],
            row["emitted"],
            row["expected"],
            row["margin"],
            row["detail"],
        )
        for row in sorted(document["outputs"], key=lambda row: row["judgement"] == "exact")
    ]
    columns = (
        "output",
        "verdict",
        ">tokens",
        ">position",
        ">emitted",
        ">stock's",
        ">margin",
        "detail",
    )
    console.print(table(columns, rows[:SHOWN]))
    if len(rows) > SHOWN:
        console.print(f"and {len(rows) - SHOWN} more, all in --json")
