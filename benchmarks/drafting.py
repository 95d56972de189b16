"""Time of one drafting step by length of history, for the drafters that run no model.

Run: ``python -P benchmarks/drafting.py``. A step is ``propose`` and, after the commit, ``observe``;
no model runs. One thread. A history is text of the built-in prompts, in a new order and with some
tokens changed on each pass. Every history ends alike: in each round the last 100 tokens are the
same whatever stands before them, and so is what is then committed, a passage that quotes them with
changes. The first ``propose`` of a round reads the history and is told apart, by the token. The
target's logits that recycle learns from are made up, and not timed. Longer histories know more
continuations: drafted nodes are told beside the times.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.registry import make_drafter
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.loading import LoadedTarget, load_target
from draftsmith.engine.native import max_nodes
from draftsmith.engine.prompts import requests_for_turn
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import Commit, Sampling, SlotView, SpecConfig
from draftsmith.engine.workload import BUILTIN, read_workload

HISTORIES = (100, 1_000, 10_000, 100_000)
CONFIGS = {
    "ngram chain": SpecConfig(drafter="ngram", block_size=5),
    "suffix chain": SpecConfig(drafter="suffix", block_size=8, match_max=16),
    "suffix dynamic tree": SpecConfig(
        drafter="suffix", block_size=8, match_max=16, tree="dynamic", tree_budget=12
    ),
    "recycle chain": SpecConfig(drafter="recycle", block_size=4),
    "recycle static tree": SpecConfig(
        drafter="recycle", block_size=4, tree="static", tree_budget=16
    ),
}
ROUNDS = 60
TAIL, CONTINUED = 100, 20  # tokens of a round: before its steps, and in them
CHANGED = 0.05  # share of tokens that differ from what is repeated
GROWTH = 1.2  # a state that has outgrown its history by this starts anew
MOST = 2.0  # times the shortest history's step
SLOT = 0
SAMPLING = Sampling(ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Round:
    """What every history ends in, and the tokens committed after it, step by step."""

    tail: tuple[int, ...]
    continued: tuple[int, ...]


class Text:
    """Token streams out of the prompts of a workload."""

    def __init__(self, loaded: LoadedTarget, prompts: str) -> None:
        rows = read_workload(prompts).rows
        made = requests_for_turn(rows, 1, {}, loaded.tokenizer, Sampling())
        self._prompts = [request.prompt_ids for request in made.requests]
        self._draw = random.Random(1)
        self._known = [token for prompt in self._prompts for token in prompt]

    def changed(self, tokens: Sequence[int]) -> list[int]:
        """The tokens, a share of them replaced by others of the text."""
        draw = self._draw
        return [draw.choice(self._known) if draw.random() < CHANGED else t for t in tokens]

    def history(self, length: int) -> list[int]:
        """Prompt after prompt, each pass in a new order."""
        text: list[int] = []
        while len(text) < length:
            for prompt in self._draw.sample(self._prompts, len(self._prompts)):
                text += self.changed(prompt)
        return text[:length]

    def round(self) -> Round:
        start = self._draw.randrange(len(self._known) - TAIL)
        tail = self._known[start : start + TAIL]
        begin = self._draw.randrange(TAIL - CONTINUED - 8)
        # The tail ends with the first words of the passage that goes on.
        tail[-4:] = tail[begin : begin + 4]
        quoted = self.changed(tail[begin + 4 : begin + 4 + CONTINUED])
        return Round(tuple(tail), tuple(quoted))


class Logits:
    """Rows ``[n, V]`` as recycle gets them: noise, with the token that comes next on top."""

    def __init__(self, vocab_size: int) -> None:
        self._rows = torch.randn(64, vocab_size, generator=torch.Generator().manual_seed(1))

    def of(self, tree: DraftTree, following: Sequence[int]) -> torch.Tensor:
        rows = self._rows[: 1 + len(tree)].clone()
        for row, depth in enumerate((0, *tree.depths())):
            if depth < len(following):
                rows[row, following[depth]] = 50.0
        return rows


class Stream:
    """One request under one drafter at one length of history: its tokens, and microseconds of its
    steps: ``propose``, then ``observe``.
    """

    def __init__(
        self, config: SpecConfig, context: DrafterContext, logits: Logits, history: Sequence[int]
    ) -> None:
        drafter = make_drafter(config, context)
        assert drafter is not None
        self._drafter = drafter
        self._logits = logits
        self._budget = max_nodes(config)
        self._history = history
        self._tokens: list[int] = []
        self.times: list[tuple[float, float]] = []
        self.nodes: list[int] = []  # drafted in each step
        self.reading: list[float] = []  # a token of history

    def follow(self, one: Round) -> None:
        """One round; the request starts anew where it has outgrown its length of history."""
        length = len(self._history)
        if not self._tokens or len(self._tokens) + TAIL > GROWTH * length:
            self._drafter.reset(SLOT)
            self._tokens = []
            if length > TAIL:
                before = self._history[: length - TAIL]
                self.reading.append(self._read(before) / len(before))
        self._read(one.tail)
        continued = one.continued
        while continued:
            continued = continued[self._step(continued) :]

    def told(self) -> dict[str, float]:
        steps = sorted(propose + observe for propose, observe in self.times)
        return {
            "steps": len(steps),
            "median_us": median(steps),
            "mean_us": sum(steps) / len(steps),
            "p99_us": steps[int(0.99 * len(steps))],
            "propose_us": median(propose for propose, _ in self.times),
            "nodes": sum(self.nodes) / len(self.nodes),
            "read_us_per_token": median(self.reading) if self.reading else 0.0,
        }

    def _read(self, tokens: Sequence[int]) -> float:
        """Commit ``tokens`` at once and have them read; the microseconds that took."""
        self._tokens += tokens
        begin = time.perf_counter()
        self._drafter.propose([self._view()])
        took = time.perf_counter() - begin
        self._drafter.observe([Commit(SLOT, tuple(tokens), (), False)])
        return took * 1e6

    def _step(self, continued: Sequence[int]) -> int:
        """Draft, and commit as many tokens as the draft had right and one more."""
        view = self._view()
        begin = time.perf_counter()
        (tree,) = self._drafter.propose([view])
        drafted = time.perf_counter()
        path = _accepted(tree, continued[:-1])
        tokens = tuple(continued[: len(path) + 1])
        logits = self._logits.of(tree, continued) if self._drafter.needs_logits else None
        commit = Commit(SLOT, tokens, path, False, logits)
        self._tokens += tokens
        again = time.perf_counter()
        self._drafter.observe([commit])
        self.nodes.append(len(tree))
        self.times.append(((drafted - begin) * 1e6, (time.perf_counter() - again) * 1e6))
        return len(tokens)

    def _view(self) -> SlotView:
        return SlotView(SLOT, self._tokens, TAIL, SAMPLING, self._budget)


def _accepted(tree: DraftTree, following: Sequence[int]) -> tuple[int, ...]:
    path: list[int] = []
    for token in following:
        parent = path[-1] if path else -1
        children = (node for node, above in enumerate(tree.parents) if above == parent)
        node = next((node for node in children if tree.tokens[node] == token), None)
        if node is None:
            break
        path.append(node)
    return tuple(path)


def bytes_per_token(config: SpecConfig, context: DrafterContext, history: Sequence[int]) -> float:
    """What the drafter's state takes in memory, a token of history."""
    drafter = make_drafter(config, context)
    assert drafter is not None
    gc.collect()
    tracemalloc.start()
    begin, _ = tracemalloc.get_traced_memory()
    view = SlotView(SLOT, history, TAIL, SAMPLING, 1)
    drafter.propose([view])
    gc.collect()
    end, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (end - begin) / len(history)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--histories", default=",".join(map(str, HISTORIES)), help="N,N,...")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--target", default="smollm2", help="its tokenizer and vocabulary count")
    parser.add_argument("--prompts", default=BUILTIN, help="a workload file")
    parser.add_argument("--most", type=float, default=MOST, help="times the shortest history's")
    options = parser.parse_args(arguments)
    histories = [int(text) for text in options.histories.split(",")]
    torch.set_num_threads(1)  # two would wait for each other wherever something else runs
    loaded = load_target(TargetRef(path=options.target))
    model = loaded.model
    context = DrafterContext(target=model, cache=model.new_cache(num_slots=1, capacity=1))
    text, logits = Text(loaded, options.prompts), Logits(model.info.vocab_size)
    rounds = [text.round() for _ in range(options.rounds)]
    longest = text.history(max(histories))
    found: dict[str, Any] = {"most": options.most, "drafters": {}}
    for name, config in CONFIGS.items():
        streams = {
            length: Stream(config, context, logits, longest[-length:]) for length in histories
        }
        for one in rounds:  # the lengths of history take turns
            for stream in streams.values():
                stream.follow(one)
        cells = {str(length): stream.told() for length, stream in streams.items()}
        drafter = {
            "histories": cells,
            "ratio": cells[str(max(histories))]["median_us"]
            / cells[str(min(histories))]["median_us"],
            "bytes_per_token": bytes_per_token(config, context, longest),
        }
        found["drafters"][name] = drafter
        print(_line(name, drafter), flush=True)
    found["ok"] = all(drafter["ratio"] <= options.most for drafter in found["drafters"].values())
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if found["ok"] else 1


def _line(name: str, drafter: dict[str, Any]) -> str:
    cells = drafter["histories"]
    shown = ", ".join(
        f"{length}: {cell['median_us']:.1f} ({cell['nodes']:.1f} nodes)"
        for length, cell in cells.items()
    )
    last = list(cells.values())[-1]
    return (
        f"{name}: {shown} us a step; longest / shortest {drafter['ratio']:.2f}; at the longest"
        f" {last['propose_us']:.1f} of it propose, 99th percentile {last['p99_us']:.1f}; reading"
        f" {last['read_us_per_token']:.1f} us and {drafter['bytes_per_token']:.0f} bytes a token"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
