"""What ``evidence.py`` runs: each section's commands, and how their results are told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of each list is run; the defaults are the whole of it."""

    target: str = "smollm2"
    parity_prompts: int = 40
    parity_tokens: int = 128
    lossless_prompts: int = 8
    lossless_tokens: int = 48
    neighbours_prompts: int = 60
    neighbours_tokens: int = 24
    outputs: int = 200
    kills: int = 20
    tune: tuple[str, ...] = ("--budget", "10m")
    regimes: tuple[tuple[str, ...], ...] = (
        ("--concurrency", "1"),
        ("--concurrency", "4"),
        ("--temperature", "0.8", "--seed", "1"),
    )

    @staticmethod
    def smoke(folder: Path) -> Sizes:
        """A minute or two, on the tiny target of ``prepare``."""
        return Sizes(
            target=str(folder / "scene" / "tiny"),
            parity_prompts=3,
            parity_tokens=12,
            lossless_prompts=3,
            lossless_tokens=8,
            neighbours_prompts=9,
            neighbours_tokens=8,
            outputs=4,
            kills=1,
            tune=("--budget", "5m", "--max-trials", "2", "--max-tokens", "16"),
            regimes=(("--concurrency", "2"),),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One command, as it would be typed in the repository's root. ``python`` and ``draftsmith`` are
    those of this environment. ``output`` keeps its stdout; a word ``@FILE:KEY`` is replaced by the
    value of KEY in that JSON file.
    """

    words: tuple[str, ...]
    output: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A section's result: Markdown, values, and why it does not count as passed."""

    text: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """``tell`` reads what the steps left, given the repository's root; it runs also after a step
    failed. ``scratch`` is removed before the section runs anew, with ``restarts`` on every call.
    """

    name: str
    title: str
    steps: tuple[Step, ...]
    tell: Callable[[Path], Told]
    scratch: tuple[Path, ...] = ()
    restarts: bool = False


def sections(sizes: Sizes, prompts: str, folder: Path) -> list[Section]:
    """All sections in order. ``folder`` is relative to the root."""
    made = [
        _model(
            "parity",
            "greedy stock equals transformers' greedy, token for token, in fp32",
            ["--count", sizes.parity_prompts, "--tokens", sizes.parity_tokens],
            (sizes, prompts, folder),
            _tell_parity,
        )
    ]
    for dtype in ("float32", "bfloat16"):
        short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
        made.append(
            _model(
                f"lossless-{short}",
                f"every drafter, chain and tree, alone and six together, equals stock in {short}",
                [
                    *("--dtype", dtype, "--count", sizes.lossless_prompts),
                    *("--tokens", sizes.lossless_tokens),
                ],
                (sizes, prompts, folder),
                _tell_lossless,
            )
        )
    made.append(
        _model(
            "lossless-neighbours",
            "every drafter, chain and tree, alone and four and eight together with changing"
            f" neighbours, equals stock in bf16 without a tie: {sizes.neighbours_prompts} prompts a"
            " configuration and temperature, shared out among the batch sizes in turns",
            [
                *("--dtype", "bfloat16", "--count", sizes.neighbours_prompts),
                *("--tokens", sizes.neighbours_tokens, "--batches", "1,4,8", "--spread"),
            ],
            (sizes, prompts, folder),
            _tell_lossless,
        )
    )
    made.append(
        _model(
            "forcing-clean",
            f"token forcing raises no alarm on {sizes.outputs} outputs of stock, in bf16",
            ["--dtype", "bfloat16", "--count", sizes.outputs, "--tokens", sizes.lossless_tokens],
            (sizes, prompts, folder),
            _tell_clean,
        )
    )
    return [*made, _mutants(sizes, folder), _kills(sizes, folder), *_tune(sizes, prompts, folder)]


def prepare(folder: Path) -> Step:
    """The tiny target and prompts that ``Sizes.smoke`` names."""
    return Step(("python", "tests/support/commands.py", str(folder / "scene")))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _model(
    name: str,
    title: str,
    extra: Sequence[object],
    common: tuple[Sizes, str, Path],
    tell: Callable[[dict[str, Any]], Told],
) -> Section:
    sizes, prompts, folder = common
    result = folder / f"{name}-parts.json"
    proof = {"parity": "parity", "forcing-clean": "clean"}.get(name, "lossless")
    words = (
        *("python", "-P", "scripts/evidence_model.py", proof, "--json", str(result)),
        *("--target", sizes.target, "--prompts", prompts),
        *(str(word) for word in extra),
    )
    return Section(
        name=name,
        title=title,
        steps=(Step(words),),
        tell=lambda root: _told(root / result, tell),
        scratch=(result,),
    )


def _mutants(sizes: Sizes, folder: Path) -> Section:
    result = folder / "mutants-parts.json"
    words = (
        *("python", "-P", "scripts/evidence_mutants.py", "--outputs", str(sizes.outputs)),
        *("--json", str(result), "--resume"),
    )
    return Section(
        name="mutants",
        title="every mutant of the engine is caught, and by what",
        steps=(Step(words, folder / "mutants.txt"),),
        tell=lambda root: _quoted(root / folder / "mutants.txt"),
        scratch=(result,),
    )


def _kills(sizes: Sizes, folder: Path) -> Section:
    result, scene = folder / "kills-parts.json", folder / "kills"
    words = ("python", "tests/support/kills.py", str(scene), "--kills", str(sizes.kills))
    return Section(
        name="kills",
        title="kill -9 of driver, worker and raylet at random moments: the run resumes, no finished"
        " trial lost or repeated, the bundle verifies, nothing left behind",
        steps=(Step((*words, "--json", str(result))),),
        tell=lambda root: _told(root / result, _tell_kills),
        scratch=(scene, result),
        restarts=True,
    )


def _tune(sizes: Sizes, prompts: str, folder: Path) -> list[Section]:
    store = folder / "tune.db"
    tuned, steps = [], []
    for number, regime in enumerate(sizes.regimes, start=1):
        answer, verified = folder / f"tune-{number}.json", folder / f"verify-{number}.json"
        common = ("--target", sizes.target, "--workload", prompts, *sizes.tune, *regime)
        steps += [
            Step(
                (
                    *("draftsmith", "tune", *common, "--store", str(store)),
                    *("--out", str(folder / "bundles"), "--json"),
                ),
                answer,
            ),
            Step(("draftsmith", "verify", f"@{answer}:bundle_path", "--json"), verified),
        ]
        tuned.append((" ".join(regime), answer, verified))
    kernels = folder / "kernels.txt"
    return [
        Section(
            name="tune",
            title="tuning runs from one command to a verdict, and verify on their bundles",
            steps=tuple(steps),
            tell=lambda root: _tell_tune(root, tuned),
            scratch=tuple(path for _, *paths in tuned for path in paths),
        ),
        Section(
            name="kernels",
            title="time of the row-stable product and of the head's best tokens by number of rows",
            steps=(Step(("python", "-P", "benchmarks/kernels.py"), kernels),),
            tell=lambda root: _quoted(root / kernels),
        ),
    ]


def _told(path: Path, tell: Callable[[dict[str, Any]], Told]) -> Told:
    if not path.exists():
        return Told(reason="it left no result")
    return tell(json.loads(path.read_text(encoding="utf-8")))


def _quoted(path: Path) -> Told:
    if not path.exists():
        return Told(reason="it left no result")
    return Told(text="```\n" + path.read_text(encoding="utf-8").strip() + "\n```")


def _tell_parity(result: dict[str, Any]) -> Told:
    parts = result["parts"]
    wrong = {name: part["differs_at"] for name, part in parts.items() if _differs(part)}
    values = {
        "prompts": len(parts),
        "tokens": sum(part["tokens"] for part in parts.values()),
        "equal": len(parts) - len(wrong),
        "differing": wrong,
    }
    rows = [(values["prompts"], values["tokens"], values["equal"], len(wrong))]
    reason = f"differs from transformers at {wrong}" if wrong else ""
    return Told(
        text=table(("prompts", "tokens", "equal", "differing"), rows), values=values, reason=reason
    )


def _differs(part: dict[str, Any]) -> bool:
    return part["differs_at"] is not None


def _tokens_a_step(counted: Counter[str] | None) -> float | None:
    return counted and counted["tokens"] / max(1, counted["steps"])


def _tell_lossless(result: dict[str, Any]) -> Told:
    """One line a configuration over all batch sizes, one a batch size over all configurations;
    tokens per step by temperature.
    """
    parts = result["parts"]
    counted = ("outputs", "tokens", "equal", "ties", "divergent")
    lines: dict[str, dict[str, Any]] = {"all": dict.fromkeys(counted, 0)}
    batches: dict[str, dict[str, Any]] = {}
    for key, part in parts.items():
        config, temperature, batch = key.rsplit(", ", 2)
        line = lines.setdefault(config, dict.fromkeys(counted, 0))
        speed = line.setdefault(temperature, Counter())
        speed.update(tokens=part["tokens"], steps=part["steps"])
        of_batch = batches.setdefault(f"all, {batch}", dict.fromkeys(counted, 0))
        for name in counted:
            for one in (line, of_batch, lines["all"]):
                one[name] += part[name]
    rows = [
        (
            config,
            line["outputs"],
            line["tokens"],
            *map(_tokens_a_step, (line.get("T=0"), line.get("T=0.8"))),
        )
        + (line["equal"], line["ties"], line["divergent"])
        for config, line in {**lines, **batches}.items()
    ]
    wrong = [name for name, part in parts.items() if not part["ok"]]
    stable = "yes" if result.get("row_stable") else "no"
    heads = (
        *("configuration", "outputs", "tokens", "tokens/step at T=0", "at T=0.8"),
        *("equal to stock", "ties", "divergent"),
    )
    return Told(
        text=f"Row-stable: {stable}.\n\n" + table(heads, rows),
        values={**lines["all"], "row_stable": stable},
        reason=f"not equal to stock: {', '.join(wrong)}" if wrong else "",
    )


def _tell_clean(result: dict[str, Any]) -> Told:
    columns = ("outputs", "positions", "exact", "tie", "divergent")
    totals = {name: sum(part[name] for part in result["parts"].values()) for name in columns}
    alarms = totals["divergent"]
    reason = f"{alarms} of stock's own outputs are called divergent" if alarms else ""
    return Told(text=table(columns, [tuple(totals.values())]), values=totals, reason=reason)


def _tell_kills(report: dict[str, Any]) -> Told:
    heads = ("kill", "process", "stage", "age of the driver", "finished", "in flight", "then")
    rows = [
        (
            number,
            kill["kind"],
            kill["stage"],
            f"{kill['driver_age_s']} s",
            kill["num_finished"],
            kill["in_flight"] or "-",
            kill["then"],
        )
        for number, kill in enumerate(report["kills"], start=1)
    ]
    runs = [(run["run"][:8], run["verdict"], run["verify"]) for run in report["runs"]]
    failed = ", ".join(report["failed"]) or "none"
    totals = (
        f"{report['num_finished']} finished trials, none lost or repeated;"
        f" {report['begun_again']} half-done ones begun again; given up: {failed}."
    )
    text = "\n\n".join((table(heads, rows), totals, table(("run", "verdict", "verify"), runs)))
    return Told(text=text, values=report)


def _tell_tune(root: Path, tuned: Sequence[tuple[str, Path, Path]]) -> Told:
    rows, values, reasons = [], {}, []
    for regime, answer, verified in tuned:
        run, check = _json_or_none(root / answer), _json_or_none(root / verified)
        if run is None:
            reasons.append(f"{regime}: no verdict")
            continue
        if check is None or not check["lossless"]:
            reasons.append(f"{regime}: verify does not agree")
        ratio = run["ratio"]
        between = (
            f"{ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})" if ratio else None
        )
        told = check and f"{check['verdict']}, {check['num_outputs']} outputs"
        speeds = (run["stock_tokens_per_s"], run["tokens_per_s"], between, run["tokens_per_step"])
        rows.append((regime, run["verdict"], run["config_text"], *speeds, told))
        values[regime] = {"tune": run, "verify": check and {**check, "outputs": None}}
    heads = (
        *("regime", "verdict", "configuration", "stock tokens/s", "its tokens/s"),
        *("ratio (95 %)", "tokens/step", "verify"),
    )
    return Told(text=table(heads, rows), values=values, reason="; ".join(reasons))


def _json_or_none(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.2f}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
