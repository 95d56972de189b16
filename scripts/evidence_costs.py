"""The sections ``drafting`` and ``memory``: what a drafting step costs by length of history, and
the peak memory of decoding, each against its bar.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence_sections import Section, Sizes, Step, Told, table


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSizes:
    """What each benchmark is given beside target and prompts."""

    target: str = "smollm2"
    prompts: str = "builtin"
    drafting: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()

    @staticmethod
    def smoke(sizes: Sizes, prompts: str) -> CostSizes:
        """Seconds, on the tiny target of ``prepare``, whose figures are held against no bar."""
        no_bar = ("--most", "1000")
        return CostSizes(
            target=sizes.target,
            prompts=prompts,
            drafting=("--histories", "100,400", "--rounds", "4", *no_bar),
            memory=("--tokens", "4", *no_bar),
        )


def cost_sections(sizes: CostSizes, folder: Path) -> list[Section]:
    """``folder`` is relative to the root."""
    common = ("--target", sizes.target, "--prompts", sizes.prompts)

    def section(name: str, title: str, extra: tuple[str, ...], tell: Any) -> Section:
        answer = folder / f"{name}-figures.json"
        words = ("python", "-P", f"benchmarks/{name}.py", *common, *extra, "--json", str(answer))
        return Section(
            name=name,
            title=title,
            steps=(Step(words),),
            tell=lambda root: _read(root / answer, tell),
            scratch=(answer,),
        )

    return [
        section(
            "drafting",
            "a drafting step without a model takes as long after 100,000 tokens of history as"
            " after 100",
            sizes.drafting,
            tell_drafting,
        ),
        section(
            "memory",
            "peak memory of decoding eight requests together, beyond the imports, against weights"
            " and cache",
            sizes.memory,
            tell_memory,
        ),
    ]


def tell_drafting(found: dict[str, Any]) -> Told:
    """One line a drafter; microseconds and drafted nodes a step by length of history."""
    drafters = found["drafters"]
    histories = list(next(iter(drafters.values()))["histories"])
    rows = []
    for name, drafter in drafters.items():
        cells = list(drafter["histories"].values())
        shown = (f"{cell['median_us']:.0f} ({cell['nodes']:.1f})" for cell in cells)
        reading = f"{cells[-1]['read_us_per_token']:.1f}"
        memory = f"{drafter['bytes_per_token']:.0f}"
        rows.append((name, *shown, drafter["ratio"], reading, memory))
    heads = (
        *("drafter", *(f"{int(length):,} tokens" for length in histories)),
        *("longest / shortest", "reading, us a token", "bytes a token"),
    )
    slow = [name for name, drafter in drafters.items() if drafter["ratio"] > found["most"]]
    return Told(
        text="Median microseconds a step, and drafted nodes in brackets:\n\n" + table(heads, rows),
        values=found,
        reason=f"slower with history by over {found['most']}: {', '.join(slow)}" if slow else "",
    )


def tell_memory(found: dict[str, Any]) -> Told:
    """One line a form of the weights and configuration."""
    rows, over = [], []
    for case, told in found["cases"].items():
        for name, run in told["runs"].items():
            sizes = (told["weights"], told["after_loading"], run["cache"], run["peak"])
            rows.append((case, name, *(f"{size / 1e6:.0f}" for size in sizes), run["ratio"]))
            over += [f"{case}, {name}"] if run["ratio"] > found["most"] else []
    heads = (
        *("weights", "decoding", "weights, MB", "held after loading", "cache", "peak"),
        "peak / (weights + cache)",
    )
    return Told(
        text=table(heads, rows),
        values=found,
        reason=f"over {found['most']} times: {'; '.join(over)}" if over else "",
    )


def _read(path: Path, tell: Any) -> Told:
    if not path.exists():
        return Told(reason="it left no result")
    told: Told = tell(json.loads(path.read_text(encoding="utf-8")))
    return told
