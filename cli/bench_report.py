"""Draws what ``bench`` measured: configurations against stock, peers, and ours against peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from draftsmith.cli.output import draw_notes, ratio_text, table
from draftsmith.cli.step_report import draw_steps
from draftsmith.engine.job import STOCK


def draw(console: Console, document: Mapping[str, Any]) -> None:
    """Every table of the document that has rows."""
    columns = (
        *("configuration", ">tokens/s", ">decode only", ">over stock (95 %)", ">decode only"),
        *(">tokens/step", "outputs"),
    )
    console.print(table(columns, [_stock(document), *map(_config, document["configurations"])]))
    told = "interleaved with stock" + (" and the peers" if document["peers"] else "")
    console.print(
        f"{document['num_prompts']} prompts, {document['concurrency']} together, "
        f"{document['repeats']} times, {told}"
    )
    if document["peers"]:
        heads = ("peer", ">tokens/s", ">decode only", ">prefill s", ">equal to ours", "note")
        console.print()
        console.print(table(heads, map(peer_row, document["peers"])))
    versus = versus_table(document)
    if versus:
        console.print()
        title = "ours over the peer: tokens/s with prefill (95 %)"
        console.print(table(("ours", *(f">{name}" for name in versus[0][1:])), versus[1:], title))
    if document.get("steps"):
        draw_steps(console, document["steps"])
    draw_notes(console, document)


def peer_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Name, speeds, mean prefill of a request, equal outputs, and what there is to know."""
    if row["failure"]:
        return (row["name"], "-", "-", "-", "-", row["failure"])
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return (
        row["name"],
        _speed(row["tokens_per_s"]),
        _speed(row["decode_tokens_per_s"]),
        "-" if row["prefill_s"] is None else f"{row['prefill_s']:.3f}",
        f"{row['num_equal']} of {row['num_outputs']}",
        "; ".join(filter(None, (row["note"], versions))),
    )


def versus_table(document: Mapping[str, Any]) -> list[list[str]]:
    """A header (empty first) of the peers that were measured, then one row a configuration of ours;
    empty when there is no such peer.
    """
    peers = [row for row in document["peers"] if row["ours_over_it"]]
    if not peers:
        return []
    texts = {row["name"]: row["config_text"] for row in document["configurations"]}
    names = [STOCK, *texts]
    lines = [["", *(row["name"] for row in peers)]]
    for name in names:
        cells = [interval_text(row["ours_over_it"].get(name)) for row in peers]
        lines.append([texts.get(name, name), *cells])
    return lines


def interval_text(interval: Mapping[str, Any] | None) -> str:
    """``1.42x (1.31 to 1.55)``, or a dash."""
    if interval is None:
        return "-"
    return ratio_text(interval["ratio"], interval["low"], interval["high"])


def _stock(document: Mapping[str, Any]) -> tuple[object, ...]:
    speeds = document["stock"]
    both = (_speed(speeds["tokens_per_s"]), _speed(speeds["decode_tokens_per_s"]))
    return (STOCK, *both, "1.00x", "1.00x", "1.00", "")


def _config(row: Mapping[str, Any]) -> tuple[object, ...]:
    judged = f"{row['num_exact']} exact, {row['num_ties']} ties, {row['num_divergent']} divergent"
    per_step = row["tokens_per_step"]
    return (
        row["config_text"],
        _speed(row["tokens_per_s"]),
        _speed(row["decode_tokens_per_s"]),
        interval_text(row["ratio"]),
        interval_text(row["decode_ratio"]),
        "-" if per_step is None else f"{per_step:.2f}",
        judged if row["lossless"] else f"LOSSY: {judged}; {row['divergence']}",
    )


def _speed(tokens_per_s: float | None) -> str:
    return "-" if tokens_per_s is None else f"{tokens_per_s:.1f}"
