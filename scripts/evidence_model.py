"""The long proofs on a real model: stock equals transformers, speculation equals stock, token
forcing raises no alarm. Every finished part is kept in --json; a second call goes on from there.

Run as ``python -P scripts/evidence_model.py parity|lossless|clean --json FILE [options]``. Exits
with 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import torch

from draftsmith.engine.forcing import EmittedOutput, force_outputs, measure_margin_noise
from draftsmith.engine.job import DraftInputs, TargetRef
from draftsmith.engine.model.loading import LoadedTarget, load_target
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.prompts import draft_vocab_ranking, requests_for_turn
from draftsmith.engine.stock import decode_stock
from draftsmith.engine.types import Request, Sampling, SpecConfig
from draftsmith.engine.workload import limit, read_workload
from draftsmith.kernels.backend import describe

T = TypeVar("T")
STOCK = SpecConfig()
BATCH = 6
MAX_PROMPT_TOKENS = 1024
RAGGED = (0, 7, 3, 11, 1, 5)  # tokens that a request may emit less than the first
TEMPERATURES = (0.0, 0.8)


def configurations(num_layers: int, vocab_size: int) -> dict[str, SpecConfig]:
    """Every drafter as a chain, and as each kind of tree that it draws."""
    exit_layer = max(1, num_layers * 2 // 3)
    leaves = SpecConfig(drafter="early_exit", exit_layer=exit_layer, block_size=3)
    second = SpecConfig(drafter="draft_model", draft_model="itself", block_size=4)
    random = SpecConfig(drafter="scripted", script="random", accept_p=0.7, block_size=5)
    recycle = SpecConfig(drafter="recycle", block_size=4)
    suffix = SpecConfig(drafter="suffix", block_size=8, match_max=16)
    branches = {"tree": "static", "branching": (3, 2, 1), "block_size": 3}
    return {
        "ngram chain": SpecConfig(drafter="ngram", block_size=5),
        "ngram chain by gain": SpecConfig(drafter="ngram", block_size=8, draft_budget="gain"),
        "suffix chain": suffix,
        "suffix chain backed by recycling": replace(suffix, match_min=2, fallback_size=3),
        "suffix dynamic tree": replace(suffix, tree="dynamic", tree_budget=12),
        "recycle chain": recycle,
        "recycle static tree": replace(recycle, tree="static", tree_budget=16),
        "early_exit chain": leaves,
        "early_exit skipped layers": replace(
            leaves, exit_layer=None, skip_layers=tuple(range(1, num_layers - 1, 3))
        ),
        "early_exit trimmed head": replace(leaves, draft_vocab=min(8192, vocab_size // 2)),
        "early_exit static tree": replace(leaves, **branches),
        "early_exit dynamic tree": replace(leaves, tree="dynamic", tree_budget=9, tree_top_k=3),
        "draft_model chain": second,
        "draft_model static tree": replace(second, **branches),
        "draft_model dynamic tree": replace(second, tree="dynamic", tree_budget=9, tree_top_k=3),
        "scripted chain": random,
        "scripted static tree": replace(random, **branches),
    }


class Kept:
    """Results by key in a JSON file, written after each; valid for one set of options."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        self._path = path
        self.value: dict[str, Any] = {"options": options, "parts": {}}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.get("options") == options:
                self.value = found

    @property
    def parts(self) -> dict[str, Any]:
        return self.value["parts"]

    def add(self, key: str, part: dict[str, Any]) -> None:
        self.parts[key] = part
        self.write()
        print(f"{key}: {part}", file=sys.stderr, flush=True)

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.value, indent=1) + "\n", encoding="utf-8")


def requests_of(
    loaded: LoadedTarget, options: argparse.Namespace, sampling: Sampling, count: int
) -> list[Request]:
    """First turns of ``count`` prompts over all categories, none of them too long."""
    rows = read_workload(options.prompts).rows
    made = requests_for_turn(
        rows, 1, {}, loaded.tokenizer, sampling, max_prompt_tokens=MAX_PROMPT_TOKENS
    )
    by_id = {request.request_id: request for request in made.requests}
    chosen = limit([row for row in rows if row.row_id in by_id], count)
    return [by_id[row.row_id] for row in chosen]


def parity(loaded: LoadedTarget, options: argparse.Namespace, kept: Kept) -> bool:
    """Greedy stock against ``generate`` of transformers, prompt by prompt."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(loaded.source_path, dtype=torch.float32).eval()
    engine = NativeEngine(loaded.model, tokenizer=loaded.tokenizer)
    sampling = Sampling(max_tokens=options.tokens)
    for request in requests_of(loaded, options, sampling, options.count):
        if request.request_id in kept.parts:
            continue
        ours = engine.run([request], STOCK).completions[0].token_ids
        prompt = torch.tensor([request.prompt_ids])
        with torch.inference_mode():
            theirs = reference.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=options.tokens,
                do_sample=False,
                pad_token_id=loaded.model.info.eos_token_ids[0],
            )[0, prompt.shape[1] :].tolist()
        pairs = zip(ours, theirs, strict=False)
        differs = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        if differs is None and len(ours) != len(theirs):
            differs = min(len(ours), len(theirs))
        kept.add(
            request.request_id,
            {"prompt_tokens": len(request.prompt_ids), "tokens": len(ours), "differs_at": differs},
        )
    return all(part["differs_at"] is None for part in kept.parts.values())


def lossless(loaded: LoadedTarget, options: argparse.Namespace, kept: Kept) -> bool:
    """Each configuration, temperature and batch size against the plain oracle. In bf16 every output
    is token-forced too; with ``--spread`` none may differ, and only one that does is.
    """
    model = loaded.model
    engine = NativeEngine(model, tokenizer=loaded.tokenizer, load_draft_model=lambda path: model)
    exactly = options.spread or options.dtype == "float32" or describe().row_stable
    kept.value["row_stable"] = describe().row_stable
    chosen = configurations(model.info.num_layers, model.info.vocab_size)
    chosen = {name: chosen[name] for name in options.configs or chosen}
    for temperature in TEMPERATURES:
        open_ = [
            (name, batch)
            for name, batch in product(chosen, options.batches)
            if _key(name, temperature, batch) not in kept.parts
        ]
        if not open_:
            continue
        sampling = Sampling(max_tokens=options.tokens, temperature=temperature, seed=1)
        every = _ragged(requests_of(loaded, options, sampling, options.count))
        stock = {r.request_id: decode_stock(model, r, loaded.tokenizer) for r in every}
        references = {name: output.token_ids for name, output in stock.items()}
        ranked = draft_vocab_ranking(
            [*references.values(), *(r.prompt_ids for r in every)], model.info.vocab_size
        )
        inputs = DraftInputs(draft_vocab_ids=ranked)
        noise = _noise(engine, every)
        for name, batch in open_:
            turn = list(chosen).index(name) + options.batches.index(batch)
            requests = share(every, turn, options.batches, options.spread)
            begin = time.perf_counter()
            config = chosen[name]
            outcome = engine.run(
                requests,
                config,
                concurrency=batch,
                inputs=inputs,
                references=references if config.drafter == "scripted" else None,
            )
            differing = [
                done
                for done in outcome.completions
                if (done.token_ids, done.stop_reason)
                != (stock[done.request_id].token_ids, stock[done.request_id].stop_reason)
            ]
            force_all = options.dtype != "float32" and not options.spread
            forced = outcome.completions if force_all else differing
            verdicts = force_outputs(
                model,
                requests,
                [EmittedOutput(c.request_id, c.token_ids, c.stop_reason) for c in forced],
                margin_noise=noise,
                tokenizer=loaded.tokenizer,
            )
            tokens = sum(len(done.token_ids) for done in outcome.completions)
            steps = sum(len(done.steps) for done in outcome.completions)
            judged = [verdict.judgement for verdict in verdicts]
            divergent = judged.count("divergent")
            kept.add(
                _key(name, temperature, batch),
                {
                    "outputs": len(requests),
                    "tokens": tokens,
                    "steps": steps,
                    "equal": len(requests) - len(differing),
                    "ties": judged.count("tie"),
                    "divergent": divergent,
                    "ok": not divergent and not (differing and exactly),
                    "seconds": round(time.perf_counter() - begin, 1),
                },
            )
            engine.forget()
    return all(part["ok"] for part in kept.parts.values())


def clean(loaded: LoadedTarget, options: argparse.Namespace, kept: Kept) -> bool:
    """Token forcing of outputs that stock itself made, greedy and sampled with many seeds."""
    engine = NativeEngine(loaded.model, tokenizer=loaded.tokenizer)
    while (made := sum(part["outputs"] for part in kept.parts.values())) < options.count:
        turn = len(kept.parts)
        temperature = TEMPERATURES[turn % 2] + 0.1 * (turn // 2)
        sampling = Sampling(max_tokens=options.tokens, temperature=temperature, seed=turn)
        requests = requests_of(loaded, options, sampling, options.count - made)
        stock = engine.run(requests, STOCK, concurrency=BATCH)
        verdicts = force_outputs(
            loaded.model,
            requests,
            [EmittedOutput(c.request_id, c.token_ids, c.stop_reason) for c in stock.completions],
            margin_noise=_noise(engine, requests),
            tokenizer=loaded.tokenizer,
        )
        counts = {name: 0 for name in ("exact", "tie", "divergent")}
        for verdict in verdicts:
            counts[verdict.judgement] += 1
        kept.add(
            f"temperature {temperature:.1f} seed {turn}",
            {
                "outputs": len(verdicts),
                "positions": sum(verdict.num_positions for verdict in verdicts),
                **counts,
            },
        )
    return not any(part["divergent"] for part in kept.parts.values())


def _key(name: str, temperature: float, batch: int) -> str:
    return f"{name}, T={temperature:g}, batch {batch}"


def share(every: Sequence[T], turn: int, batches: Sequence[int], spread: bool) -> list[T]:
    """The part of a batch size; ``turn`` moves on with the configuration and the batch size."""
    return list(every[turn % len(batches) :: len(batches)] if spread else every)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _ragged(requests: Sequence[Request]) -> list[Request]:
    def shortened(request: Request, place: int) -> Request:
        most = max(2, request.sampling.max_tokens - RAGGED[place % len(RAGGED)])
        return replace(request, sampling=replace(request.sampling, max_tokens=most))

    return [shortened(request, place) for place, request in enumerate(requests)]


def _noise(engine: NativeEngine, requests: Sequence[Request]) -> float:
    few = list(requests[:4])
    stock = engine.run(few, STOCK, capture_margins=True)
    return measure_margin_noise(engine.model, few, stock.completions).noise


PROOFS = {"parity": parity, "lossless": lossless, "clean": clean}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("proof", choices=PROOFS)
    parser.add_argument("--json", type=Path, required=True, help="results; a second call goes on")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--prompts", default="builtin", help="a workload file")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--count", type=int, default=40, help="prompts; outputs of clean")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a prompt")
    parser.add_argument("--batches", type=_numbers, default=(1, BATCH), help="lossless: N,N,...")
    parser.add_argument(
        "--spread",
        action="store_true",
        help="lossless: each configuration's prompts shared out among the batch sizes",
    )
    parser.add_argument("--configs", type=lambda text: tuple(text.split(",")), default=())
    options = parser.parse_args(arguments)
    told = {name: value for name, value in vars(options).items() if name != "json"}
    kept = Kept(options.json, json.loads(json.dumps(told)))
    loaded = load_target(TargetRef(path=options.target, dtype=options.dtype))
    kept.value["ok"] = PROOFS[options.proof](loaded, options, kept)
    kept.write()
    for key, part in kept.parts.items():
        print(f"{key}: " + ", ".join(f"{name} {value}" for name, value in part.items()))
    return 0 if kept.value["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
