"""Peak memory of loading and decoding SmolLM2-135M, against weights plus cache.

Run: ``python -P benchmarks/memory.py``. Every case is a process of its own. Resident memory is read
after the imports (and after the tokenizer was once loaded, which imports more), after loading, and
at its peak while eight requests of 128 tokens are decoded together. All but the first are told
beyond the first; loading's own peak, the mapped checkpoint included, stands apart. The bar: the
peak of decoding is at most 1.3 times the bytes of weights and cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST = 1.3
TOGETHER = 8
CASES: dict[str, dict[str, str]] = {
    "bf16, weights auto": {"dtype": "bfloat16", "weights": "auto"},
    "bf16, weights plain": {"dtype": "bfloat16", "weights": "plain"},
    "fp32": {"dtype": "float32", "weights": "plain"},
}
TREE = {"drafter": "recycle", "block_size": 4, "tree": "static", "tree_budget": 16}
RUNS: dict[str, tuple[dict[str, Any], float]] = {  # configuration, temperature
    "stock, T=0": ({}, 0.0),
    "recycle static tree, T=0.8": (TREE, 0.8),
}


def peak_bytes() -> int:
    """Most memory resident since ``reset_peak``."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise SystemExit("/proc/self/status tells no peak: this benchmark needs Linux")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def measure(case: str, target: str, prompts: str, tokens: int) -> dict[str, Any]:
    """One case, in this process."""
    import psutil

    from draftsmith.engine.job import TargetRef
    from draftsmith.engine.model.loading import load_target, load_tokenizer
    from draftsmith.engine.model.locating import locate
    from draftsmith.engine.native import CAPACITY_STEP, NativeEngine, max_nodes, rows_needed
    from draftsmith.engine.prompts import requests_for_turn
    from draftsmith.engine.types import Sampling, SpecConfig
    from draftsmith.engine.workload import limit, read_workload

    def resident() -> int:
        return int(psutil.Process().memory_info().rss)

    path = locate(target)
    load_tokenizer(path)  # what transformers imports when first asked
    imports = resident()
    reset_peak()
    loaded = load_target(TargetRef(path=target, **CASES[case]))
    loading_peak, after_loading = peak_bytes(), resident()
    model = loaded.model
    engine = NativeEngine(model, tokenizer=loaded.tokenizer)
    row_bytes = model.new_cache(num_slots=1, capacity=1).num_bytes
    rows = limit(read_workload(prompts).rows, TOGETHER)
    found: dict[str, Any] = {
        "imports": imports,
        "weights": model.info.weight_bytes,
        "loading_peak": loading_peak - imports,
        "after_loading": after_loading - imports,
        "runs": {},
    }
    for name, (knobs, temperature) in RUNS.items():
        config = SpecConfig(**knobs)
        sampling = Sampling(max_tokens=tokens, temperature=temperature, ignore_eos=True, seed=1)
        requests = requests_for_turn(rows, 1, {}, loaded.tokenizer, sampling).requests
        capacity = max(map(rows_needed, requests)) + 1 + max_nodes(config)
        capacity = -(-capacity // CAPACITY_STEP) * CAPACITY_STEP  # as the engine rounds it
        reset_peak()
        engine.run(requests, config, concurrency=TOGETHER)
        peak = peak_bytes() - imports
        engine.forget()
        cache = row_bytes * TOGETHER * capacity
        found["runs"][name] = {
            "cache": cache,
            "capacity": capacity,
            "peak": peak,
            "ratio": peak / (model.info.weight_bytes + cache),
        }
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--prompts", default="builtin", help="a workload file")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a request")
    parser.add_argument("--most", type=float, default=MOST, help="times weights and cache")
    parser.add_argument("--case", choices=CASES, help="this one alone, as JSON, in this process")
    options = parser.parse_args(arguments)
    common = (options.target, options.prompts, options.tokens)
    if options.case:
        print(json.dumps(measure(options.case, *common)))
        return 0
    found: dict[str, Any] = {"most": options.most, "cases": {}}
    print("MB beyond the imports; weights + cache; ratio")
    for case in CASES:
        words = ("--target", common[0], "--prompts", common[1], "--tokens", str(common[2]))
        command = [sys.executable, "-P", __file__, "--case", case, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        told = found["cases"][case] = json.loads(done.stdout)
        loading = (
            f"after loading {_mb(told['after_loading'])}, its peak {_mb(told['loading_peak'])}"
        )
        print(f"{case}: weights {_mb(told['weights'])}, {loading}, imports {_mb(told['imports'])}")
        for name, run in told["runs"].items():
            needed = f"{_mb(told['weights'])} + {_mb(run['cache'])}"
            print(f"  {name}: peak {_mb(run['peak'])}; {needed}; {run['ratio']:.2f}", flush=True)
    ratios = [run["ratio"] for told in found["cases"].values() for run in told["runs"].values()]
    found["ok"] = max(ratios) <= options.most
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if found["ok"] else 1


def _mb(count: int) -> str:
    return f"{count / 1e6:.0f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
