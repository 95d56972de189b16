"""Long form of the mutant table: every mutant of the engine over many outputs, and who kills it.

Run as ``python -P scripts/evidence_mutants.py [--outputs 200] [--json FILE [--resume]]``. Exits
with 1 when a mutant survives or an output without a mutant is not exact.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from mutants import MUTANTS, Trial, clean_verdicts, table, try_mutant  # noqa: E402

ROWS = 400  # verified rows compared with a plain forward, per mutant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=int, default=200, help="outputs per mutant, and clean")
    parser.add_argument("--json", type=Path, help="write results here after every mutant")
    parser.add_argument("--resume", action="store_true", help="keep results found in --json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report = _load(args.json, args.outputs) if args.json and args.resume else {}
    report = {"outputs": args.outputs, "trials": {}, "clean": None, **report}
    for mutant in MUTANTS:
        if mutant.name not in report["trials"]:
            print(f"{mutant.name} ...", file=sys.stderr, flush=True)
            trial = try_mutant(mutant, outputs=args.outputs, rows=ROWS)
            report["trials"][mutant.name] = _to_json(trial)
            _save(args.json, report)
    if report["clean"] is None:
        verdicts = clean_verdicts(args.outputs)
        report["clean"] = dict(Counter(verdict.judgement for verdict in verdicts))
        _save(args.json, report)
    trials = [_from_json(report["trials"][mutant.name], mutant) for mutant in MUTANTS]
    print(table(trials))
    survivors = [trial.mutant.name for trial in trials if trial.killer is None]
    alarms = sum(count for judgement, count in report["clean"].items() if judgement != "exact")
    print(f"\n{len(trials)} mutants, {len(survivors)} survive{': ' if survivors else ''}", end="")
    print(", ".join(survivors))
    print(f"{sum(report['clean'].values())} clean outputs, {alarms} alarms")
    return 1 if survivors or alarms else 0


def _to_json(trial: Trial) -> dict[str, Any]:
    values = {name: value for name, value in asdict(trial).items() if name != "mutant"}
    return {"fault": trial.mutant.fault, "killer": trial.killer, **values}


def _from_json(values: dict[str, Any], mutant: Any) -> Trial:
    counts = {name: value for name, value in values.items() if name.startswith("num_")}
    return Trial(mutant=mutant, **counts)


def _load(path: Path, outputs: int) -> dict[str, Any]:
    if not path.exists():
        return {}
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report if report.get("outputs") == outputs else {}


def _save(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
