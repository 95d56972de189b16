"""``draftsmith generate``: one prompt through a configuration, with its tokens per step."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from draftsmith.cli import options as opt
from draftsmith.cli.configs import (
    by_law,
    foreign_target,
    override,
    read_choice,
    resolve,
    sampling_of,
    target_of,
)
from draftsmith.cli.errors import VERIFY_FAILED, CliInputError
from draftsmith.cli.judge import judge
from draftsmith.cli.output import Output, facts, make_console, printable, tell, with_note
from draftsmith.cli.outputs_file import Answered
from draftsmith.cli.wiring import Placement, Running, load_engine
from draftsmith.engine.forcing import EmittedOutput
from draftsmith.engine.prompts import requests_for_turn
from draftsmith.engine.types import Completion, Request, Sampling, SpecConfig
from draftsmith.engine.workload_formats import RecordError, parse_record
from draftsmith.tuner.space import config_json, config_text

EXAMPLES = """Examples:

draftsmith generate "Why is the sky blue?" --target smollm2

draftsmith generate "Why is the sky blue?" --bundle runs/demo/ngram-1a2b3c4d --check

echo "Once upon a" | draftsmith generate - --raw --target DIR --knobs '{"drafter": "suffix"}'"""


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt, or - to read it from stdin.")],
    target: opt.TargetOption = None,
    bundle: opt.BundleOption = None,
    knobs: opt.KnobsOption = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text without a chat template.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Decode with stock too; exit code 1 if the answer is lossy."),
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
    """Generate one answer, with speculation by a bundle or by --knobs, else with stock."""
    choice = read_choice(knobs, bundle) if (knobs, bundle) != (None, None) else {}
    flags = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k}
    flags |= {"top_p": top_p, "min_p": min_p, "seed": seed}
    sampling = override(sampling_of(choice), flags)
    placement = Placement(
        path=target, dtype=dtype, device=device, num_threads=threads, weights=weights
    )
    ref = placement.apply(target_of(choice, target))
    running = load_engine(ref)
    tell(foreign := foreign_target(choice, ref))
    tell(running.kernel_note)
    chosen = resolve(choice, running.facts(sampling.temperature))
    request = _request(sys.stdin.read() if prompt == "-" else prompt, raw, running, sampling)
    made = running.engine.run([request], chosen.config, inputs=chosen.inputs).completions[0]
    stock = running.engine.run([request], SpecConfig()).completions[0] if check else None
    document = _document(running, request, made, chosen.config, stock)
    document = with_note(with_note(document, foreign), running.kernel_note)
    if document["equals_stock"] is False and by_law(chosen.config.verifier, sampling.temperature):
        output = EmittedOutput(request.request_id, made.token_ids, made.stop_reason)
        judged = judge(running, [Answered(request, output)], in_distribution=True)
        document["verdict"] = judged.verdict

    def render(console: Console) -> None:
        text = document["text"]
        shown = printable(text, keep="\n\t") if console.is_terminal else text
        console.print(shown, markup=False, soft_wrap=True)
        _summary(document)

    Output(as_json).report(document, render)
    if document["verdict"] == "lossy":
        raise typer.Exit(VERIFY_FAILED)


def _request(text: str, raw: bool, running: Running, sampling: Sampling) -> Request:
    """The request of one prompt. ``seed`` is used as it is: one prompt needs no seed of its own."""
    record: dict[str, Any] = (
        {"prompt": text} if raw else {"messages": [{"role": "user", "content": text}]}
    )
    try:
        row = parse_record(record, 1)
    except RecordError as error:
        raise CliInputError(f"the prompt cannot be used: {error}") from error
    made = requests_for_turn([row], 1, {}, running.tokenizer, sampling).requests[0]
    return Request(request_id="prompt", prompt_ids=made.prompt_ids, sampling=sampling)


def _document(
    running: Running,
    request: Request,
    made: Completion,
    config: SpecConfig,
    stock: Completion | None,
) -> dict[str, Any]:
    """Also a row that ``draftsmith verify`` takes."""
    equal = None if stock is None else stock.token_ids == made.token_ids
    return {
        "text": running.tokenizer.decode(list(made.token_ids), skip_special_tokens=True),
        "prompt_ids": list(request.prompt_ids),
        "token_ids": list(made.token_ids),
        "stop_reason": made.stop_reason,
        "sampling": asdict(request.sampling),
        "config": config_json(config),
        "config_text": config_text(config),
        "num_steps": len(made.steps),
        "tokens_per_step": sum(step.committed for step in made.steps) / max(1, len(made.steps)),
        "tokens_per_s": len(made.token_ids) / max(1e-9, made.decode_s),
        "stock_tokens_per_s": len(stock.token_ids) / max(1e-9, stock.decode_s) if stock else None,
        "equals_stock": equal,
        "verdict": None if equal is None else "lossless" if equal else "lossy",
    }


def _summary(document: dict[str, Any]) -> None:
    """What the run was like, on stderr: the answer alone is on stdout."""
    pairs: list[tuple[str, object]] = [
        ("configuration", document["config_text"]),
        ("tokens", f"{len(document['token_ids'])}, stopped by {document['stop_reason']}"),
        ("tokens per step", f"{document['tokens_per_step']:.2f}"),
        ("decode", f"{document['tokens_per_s']:.1f} tokens/s"),
    ]
    if document["equals_stock"] is not None:
        pairs.append(("stock decode", f"{document['stock_tokens_per_s']:.1f} tokens/s"))
        pairs.append(("equals stock", document["equals_stock"]))
        pairs.append(("verdict", document["verdict"]))
    make_console(stderr=True).print(facts(pairs))
