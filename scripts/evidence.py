"""The long proofs, section by section, and docs/measurements.md out of their results.

Run as ``python -P scripts/evidence.py [--only NAME] [--fresh] [--smoke] [--prompts FILE]``. What a
section gave is kept in runs/evidence/NAME.json; one that passed with the same commands is not run
again, and the long ones go on where they stopped. A section that fails is shown with its reason,
the others run all the same, and the exit code is 1. ``--peer`` and ``--peer-python``, as
``draftsmith bench`` takes them, put further engines into the section ``bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))

from evidence_bench import BenchSizes, bench_section  # noqa: E402
from evidence_costs import CostSizes, cost_sections  # noqa: E402
from evidence_sections import Section, Sizes, Step, prepare, sections, table  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = Path("docs") / "measurements.md"
BEGIN, END = "<!-- evidence: begin -->\n", "<!-- evidence: end -->\n"
PREFACE = """# Measurements

What the long proofs gave, on one machine. `make evidence` runs them and writes the part below.

"""
LIBRARIES = ("draftsmith", "torch", "transformers", "ray", "optuna", "sqlalchemy", "numpy")
LAST_LINES = 3  # of a failed command's output: its reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where results go, and whether those that are there count. Paths are relative to the root."""

    folder: Path
    document: Path
    fresh: bool

    def path(self, name: str) -> Path:
        return ROOT / self.folder / name


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="this section; repeatable")
    parser.add_argument("--fresh", action="store_true", help="run passed sections again")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, results in runs/smoke")
    parser.add_argument("--prompts", default="builtin", help="a workload file")
    parser.add_argument("--peer", action="append", default=[], help="one more peer of bench")
    parser.add_argument("--peer-python", action="append", default=[], help="NAME=PATH, its Python")
    options = parser.parse_args(arguments)
    folder = Path("runs") / ("smoke" if options.smoke else "evidence")
    document = folder / "measurements.md" if options.smoke else DOCUMENT
    place = Place(folder=folder, document=document, fresh=options.fresh)
    prompts, sizes = options.prompts, Sizes()
    if prompts != "builtin":
        prompts = os.path.relpath(prompts, ROOT)
    if options.smoke:
        prompts, sizes = str(folder / "scene" / "prompts.jsonl"), Sizes.smoke(folder)
    bench = BenchSizes.smoke(sizes) if options.smoke else BenchSizes()
    bench = bench.beside(options.peer, [_relative(text) for text in options.peer_python])
    costs = CostSizes.smoke(sizes, prompts) if options.smoke else CostSizes()
    known = [*sections(sizes, prompts, folder), *cost_sections(costs, folder)]
    known.append(bench_section(bench, prompts, folder))
    names = [section.name for section in known]
    unknown = set(options.only or ()) - set(names)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}: use {', '.join(names)}")
    place.path("").mkdir(parents=True, exist_ok=True)
    if options.smoke and not place.path("scene").exists():
        run(prepare(folder), place.path("prepare.log"))
    for section in known:
        if not options.only or section.name in options.only:
            carry_out(section, place)
            write_document(known, place)
    failed = [name for name in options.only or names if not _passed(place.path(f"{name}.json"))]
    print(f"{place.document}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def carry_out(section: Section, place: Place) -> None:
    """Run the section's steps up to the first that fails; keep and print what it gave."""
    before = kept(section, place)
    if before is not None and before["status"] == "passed" and not place.fresh:
        print(f"{section.name}: passed on {before['date']}", flush=True)
        return
    if place.fresh or before is None or section.restarts:
        for path in (ROOT / name for name in section.scratch):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    print(f"{section.name}: {section.title} ...", flush=True)
    begin, reason = time.monotonic(), ""
    for step in section.steps:
        reason = run(step, place.path(f"{section.name}.log"))
        if reason:
            break
    told = section.tell(ROOT)
    reason = "; ".join(filter(None, (told.reason, reason)))
    result = {
        "name": section.name,
        "title": section.title,
        "status": "failed" if reason else "passed",
        "reason": reason,
        "commands": [shown(step) for step in section.steps],
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "seconds": round(time.monotonic() - begin),
        "machine": machine(),
        "text": told.text.strip(),
        "values": told.values,
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    place.path(f"{section.name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"{told.text}\n\n{section.name}: {result['status']} {reason}\n", flush=True)


def kept(section: Section, place: Place) -> dict[str, Any] | None:
    """What an earlier call with the same commands gave."""
    path = place.path(f"{section.name}.json")
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found if found["commands"] == [shown(step) for step in section.steps] else None


def run(step: Step, log: Path) -> str:
    """Run one command in the root; why it failed, or nothing. Its messages go to ``log``."""
    program = sys.executable if step.words[0] == "python" else _beside_python(step.words[0])
    try:
        words = [_value(word) for word in step.words[1:]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{shown(step)}: {error}"
    with open(log, "a", encoding="utf-8") as messages:
        messages.write(f"$ {shown(step)}\n")
        messages.flush()
        done = subprocess.run(
            [program, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=messages, check=False
        )
        answer = done.stdout.decode("utf-8", errors="replace")
        if step.output:
            (ROOT / step.output).write_text(answer, encoding="utf-8")
        else:
            messages.write(answer)
    code = done.returncode
    if code == 0:
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LAST_LINES:]
    return f"exit code {code}: {' / '.join(line.strip() for line in lines)}"


def shown(step: Step) -> str:
    """The command as one would type it."""

    def word(text: str) -> str:
        if not text.startswith("@"):
            return shlex.quote(text)
        file, key = text[1:].rsplit(":", 1)
        return f"$(jq -r .{key} {file})"

    line = " ".join(word(text) for text in step.words)
    return f"{line} > {step.output}" if step.output else line


def commit() -> str | None:
    """The commit of the code that runs, ``+`` behind it when files differ; None outside git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{DOCUMENT}")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, str]:
    """The date's machine and the versions that matter."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in LIBRARIES},
    }


def write_document(known: Sequence[Section], place: Place) -> None:
    """Replace the generated part of the document; sections that were never run are named."""
    path = ROOT / place.document
    text = path.read_text(encoding="utf-8") if path.exists() else PREFACE + BEGIN + END
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    results = {section.name: kept(section, place) for section in known}
    parts = [
        table(("section", "result", "date", "commit", "minutes"), map(_summary, results.items()))
    ]
    last: dict[str, str] = {}
    for name, result in results.items():
        if result is None:
            continue
        if result["machine"] != last:
            last = result["machine"]
            parts.append("Measured on " + ", ".join(f"{k} {v}" for k, v in last.items()) + ".")
        commands = "\n".join(result["commands"])
        parts += [f"## {name}", result["title"][:1].upper() + result["title"][1:] + "."]
        parts.append(f"```\n{commands}\n```")
        if result["reason"]:
            parts.append(f"**Failed:** {result['reason']}")
        if result["text"]:
            parts.append(result["text"])
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "\n\n".join(parts)
    path.write_text(f"{head}{BEGIN}\n{body}\n\n{END}{tail}", encoding="utf-8")


def _summary(item: tuple[str, dict[str, Any] | None]) -> tuple[object, ...]:
    name, result = item
    if result is None:
        return (name, "not run", None, None, None)
    seconds, known = result["seconds"], result.get("commit")
    return (name, result["status"], result["date"], known, f"{seconds / 60:.1f}")


def _passed(path: Path) -> bool:
    return path.exists() and json.loads(path.read_text(encoding="utf-8"))["status"] == "passed"


def _value(word: str) -> str:
    if not word.startswith("@"):
        return word
    file, key = word[1:].rsplit(":", 1)
    return str(json.loads((ROOT / file).read_text(encoding="utf-8"))[key])


def _relative(text: str) -> str:
    """NAME=PATH with the path from the root, as commands are shown."""
    name, equals, path = text.partition("=")
    return f"{name}{equals}{os.path.relpath(path, ROOT)}" if path else text


def _beside_python(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
