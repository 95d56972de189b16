"""Draws a tuning run's verdict, its table of configurations, and a bundle's contents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from draftsmith.cli.output import facts, ratio_text, say, table
from draftsmith.tuner.duration import format_duration


def draw_result(console: Console, result: Mapping[str, Any]) -> None:
    """A ``TuneResult`` as JSON: the verdict, speeds, the gate's word, and where to go next."""
    console.print()
    say(console, f"Verdict: {result['verdict']}", style="bold")
    say(console, result["summary"])
    console.print()
    pairs: list[tuple[str, object]] = [
        ("configuration", result["config_text"]),
        ("stock", _speed(result["stock_tokens_per_s"])),
        ("winner" if result["verdict"] == "winner" else "finalist", _speed(result["tokens_per_s"])),
        ("ratio", _interval(result["ratio"])),
        ("decode only", _interval(result["decode_ratio"])),
        ("tokens per step", _decimals(result["tokens_per_step"])),
        ("outputs", _lossless(result["lossless"])),
        ("trials", _trials(result["trials"])),
        ("time", _phases(result["seconds_by_phase"])),
        ("run", result["run"] + (" (resumed)" if result["resumed"] else "")),
    ]
    pairs += [
        (f"against {item['against']}", f"{_interval(item['interval'])}: {item['verdict']}")
        for item in result["comparisons"]
    ]
    pairs += [("note", note) for note in result["notes"]]
    if result["bundle_path"]:
        pairs.append(("bundle", result["bundle_path"]))
    if result["next_command"]:
        pairs.append(("next", result["next_command"]))
    console.print(facts(pairs))


def draw_trials(console: Console, trials: list[dict[str, Any]], title: str) -> None:
    """Rows of ``show``: number, stage, state, configuration, speed-up."""
    rows = [
        (
            trial["number"],
            f"{trial['stage']}/{trial['rung']}",
            trial["state"],
            trial["config_text"],
            ratio_text(trial["score"], trial["score_low"], trial["score_high"]),
            trial["feasible"],
            trial["reason"],
        )
        for trial in trials
    ]
    columns = (">#", "stage", "state", "configuration", ">over stock", "feasible", "reason")
    console.print(table(columns, rows, title))


def _speed(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:.1f} tokens/s"


def _decimals(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(interval: Mapping[str, Any] | None) -> str:
    if interval is None:
        return "-"
    text = ratio_text(interval["ratio"], interval["low"], interval["high"])
    confidence = interval.get("confidence", 0.95)
    return f"{text}, {confidence * 100:g} % over {interval['num_prompts']} prompts"


def _lossless(lossless: Mapping[str, Any]) -> str:
    text = (
        f"{lossless['verdict']}: {lossless['num_outputs']} outputs, {lossless['num_exact']} exact, "
        f"{lossless['num_ties']} ties, {lossless['num_divergent']} divergent"
    )
    return f"{text}; {lossless['detail']}" if lossless["detail"] else text


def _trials(trials: Mapping[str, int]) -> str:
    return (
        f"{trials['configurations']} configurations: {trials['done']} measured "
        f"({trials['infeasible']} of them not valid, {trials.get('stopped_early', 0)} stopped "
        f"early as slower), {trials['failed']} failed, {trials.get('unfinished', 0)} unfinished; "
        f"{trials['jobs']} jobs"
    )


def _phases(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {format_duration(value)}" for name, value in seconds.items()) or "-"


def draw_bundle(console: Console, document: Mapping[str, Any]) -> None:
    """A bundle: where it is from, its configuration and its evidence."""
    pairs = [
        ("bundle", document["path"]),
        ("sha256", document["checksum"]),
        ("deployment", document["deployment_fingerprint"]),
        ("made by", ", ".join(f"{name} {v}" for name, v in document["versions"].items())),
        ("held-out outputs", document["num_outputs"]),
    ]
    console.print(facts(pairs))
    if "verdict" in document["evidence"]:
        draw_result(console, document["evidence"])
