"""The section ``bench``: stock and configurations beside other engines, and a step's costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evidence_sections import Section, Sizes, Step, Told, table

from draftsmith.cli.bench_report import versus_table
from draftsmith.cli.step_report import floor_text, parts_rows

LOOKUP = 'transformers:{"prompt_lookup_num_tokens": 10}'
KNOBS = (
    '{"drafter": "ngram", "block_size": 5, "match_min": 2, "match_max": 4}',
    '{"drafter": "suffix", "block_size": 8}',
    '{"drafter": "recycle", "block_size": 4, "tree": "static", "tree_budget": 24}',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSizes:
    """``batches``: concurrency and prompts of each run; the step table goes with the first.
    ``pythons``: NAME=PATH of environments with further engines.
    """

    target: str = "smollm2"
    tokens: int = 128
    batches: tuple[tuple[int, int], ...] = ((1, 26), (4, 32), (8, 48), (16, 72))
    knobs: tuple[str, ...] = KNOBS
    peers: tuple[str, ...] = ("transformers", LOOKUP)
    pythons: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    @staticmethod
    def smoke(sizes: Sizes) -> BenchSizes:
        """Seconds, on the tiny target of ``prepare``."""
        return BenchSizes(
            target=sizes.target,
            tokens=8,
            batches=((1, 2), (2, 6)),
            knobs=KNOBS[:1],
            extra=("--threads", "1"),
        )

    def beside(self, peers: Sequence[str], pythons: Sequence[str]) -> BenchSizes:
        """With further peers."""
        return replace(self, peers=(*self.peers, *peers), pythons=(*self.pythons, *pythons))


def bench_section(sizes: BenchSizes, prompts: str, folder: Path) -> Section:
    """``folder`` is relative to the root."""
    steps, answers = [], []
    for index, (concurrency, count) in enumerate(sizes.batches):
        answer = folder / f"bench-{concurrency}.json"
        words = [
            *("draftsmith", "bench", "--target", sizes.target, "--workload", prompts),
            *("--limit", str(count), "--max-tokens", str(sizes.tokens)),
            *("--concurrency", str(concurrency)),
        ]
        for flag, values in (
            ("--knobs", sizes.knobs),
            ("--peer", sizes.peers),
            ("--peer-python", sizes.pythons),
        ):
            words += [word for value in values for word in (flag, value)]
        words += [*sizes.extra, *([] if index else ["--steps"]), "--json"]
        steps.append(Step(tuple(words), answer))
        answers.append(answer)
    return Section(
        name="bench",
        title="stock and configurations beside other engines, interleaved, each stopped while"
        " another is timed; and what a verify step costs",
        steps=tuple(steps),
        tell=lambda root: tell_bench([root / answer for answer in answers]),
        scratch=tuple(answers),
    )


def tell_bench(answers: Sequence[Path]) -> Told:
    """Tables of every run that left a result."""
    parts, values, reasons = [], {}, []
    for path in answers:
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            reasons.append(f"{path.name}: no result")
            continue
        values[path.stem] = found
        together = found["concurrency"]
        requests = "one request" if together == 1 else f"{together} requests together"
        parts.append(f"### {requests.capitalize()}, {found['num_prompts']} prompts")
        parts += _speeds(found)
        if found.get("steps"):
            parts += _steps(found["steps"])
        lossy = [row["config_text"] for row in found["configurations"] if not row["lossless"]]
        reasons += [f"{path.name}: {name} is lossy" for name in lossy]
    return Told(text="\n\n".join(parts), values=values, reason="; ".join(reasons))


def _speeds(found: dict[str, Any]) -> list[str]:
    """Who reaches what, and ours over each peer that was measured."""
    stock = found["stock"]
    rows = [("stock", stock["tokens_per_s"], stock["decode_tokens_per_s"], None, None, None)]
    rows += [
        (
            row["config_text"],
            row["tokens_per_s"],
            row["decode_tokens_per_s"],
            _interval(row["ratio"]),
            row["tokens_per_step"],
            f"{row['num_exact']} of {row['num_outputs']}",
        )
        for row in found["configurations"]
    ]
    rows += [
        (
            row["name"],
            row["tokens_per_s"],
            row["decode_tokens_per_s"],
            None,
            None,
            row["failure"].split("; its last lines")[0]
            or f"{row['num_equal']} of {row['num_outputs']}",
        )
        for row in found["peers"]
    ]
    heads = ("", "tokens/s", "decode only", "over stock", "tokens/step", "equal to stock")
    told = [table(heads, rows), *_notes(found["peers"])]
    versus = versus_table(found)
    if versus:
        told.append(table(("ours over the peer", *versus[0][1:]), versus[1:]))
    return told


def _notes(peers: Sequence[dict[str, Any]]) -> list[str]:
    notes = []
    for row in peers:
        facts = [f"{name} {version}" for name, version in row["versions"].items()]
        facts += [row["note"]] if row["note"] else []
        if facts:
            notes.append(f"{row['name']}: {', '.join(facts)}")
    return ["; ".join(notes) + "."] if notes else []


def _steps(steps: dict[str, Any]) -> list[str]:
    """T(B, n) in milliseconds, layers + head; the floor; the parts of a decoding step."""
    costs = {(cost["batch"], cost["rows"]): cost for cost in steps["table"]}
    batches = sorted({batch for batch, _ in costs})
    widths = sorted({count for _, count in costs})
    lines = [
        (
            batch,
            *(
                f"{_ms(costs[batch, count]['layers_s'])} + {_ms(costs[batch, count]['head_s'])}"
                for count in widths
            ),
        )
        for batch in batches
    ]
    return [
        "One verify step, milliseconds, layers + head:",
        table(("requests", *(f"{count} rows" for count in widths)), lines),
        f"The {floor_text(steps)}.",
        "Parts of a decoding step, one request, milliseconds:",
        table(
            ("configuration", "step", "layers", "head", "draft model", "host", "host share"),
            parts_rows(steps),
        ),
    ]


def _interval(interval: dict[str, Any] | None) -> str | None:
    if interval is None:
        return None
    low, high = interval["low"], interval["high"]
    spread = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{interval['ratio']:.2f}{spread}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}" if seconds >= 1e-3 else f"{seconds * 1e3:.2f}"
