"""Configurations and requests that the losslessness tests share."""

from __future__ import annotations

import random

from draftsmith.engine.types import Request, Sampling, SpecConfig

CONFIGS: dict[str, SpecConfig] = {
    "ngram": SpecConfig(drafter="ngram", block_size=4, match_max=3),
    "suffix": SpecConfig(drafter="suffix", block_size=8, match_max=16),
    "suffix-backed": SpecConfig(drafter="suffix", block_size=8, match_min=2, fallback_size=3),
    "suffix-tree": SpecConfig(
        drafter="suffix", tree="dynamic", block_size=6, tree_budget=12, match_max=16
    ),
    "recycle-chain": SpecConfig(drafter="recycle", block_size=4),
    "recycle-tree": SpecConfig(drafter="recycle", tree="static", block_size=4, tree_budget=16),
    "exit-chain": SpecConfig(drafter="early_exit", exit_layer=2, block_size=3),
    "exit-skip": SpecConfig(drafter="early_exit", skip_layers=(1, 2), block_size=3),
    "exit-trim": SpecConfig(drafter="early_exit", exit_layer=3, block_size=4, draft_vocab=24),
    "exit-static": SpecConfig(
        drafter="early_exit", exit_layer=2, tree="static", branching=(3, 2, 1), block_size=3
    ),
    "exit-dynamic": SpecConfig(
        drafter="early_exit",
        exit_layer=2,
        tree="dynamic",
        tree_budget=9,
        tree_top_k=3,
        block_size=4,
    ),
    "scripted": SpecConfig(drafter="scripted", script="random", accept_p=0.7, block_size=5),
    "mixed": SpecConfig(drafter="scripted", script="mixed", script_right=2, block_size=5),
    "wrong": SpecConfig(drafter="scripted", script="wrong", block_size=3),
    "oracle": SpecConfig(drafter="scripted", script="oracle", block_size=6),
}


def make_requests(
    count: int, vocab_size: int, *, seed: int = 0, max_tokens: int = 24, **sampling: object
) -> list[Request]:
    """Ragged prompts (1 to 40 tokens, some with repeats to look up) and ragged lengths."""
    rng = random.Random(seed)
    requests = []
    for index in range(count):
        length = [1, 7, 19, 3, 40, 12][index % 6]
        prompt = [rng.randrange(2, vocab_size) for _ in range(length)]
        if length > 10:
            prompt = (prompt[: length // 2] * 2)[:length]
        requests.append(
            Request(
                request_id=f"r{index}",
                prompt_ids=tuple(prompt),
                sampling=Sampling(
                    max_tokens=max_tokens - 5 * (index % 3),
                    seed=seed * 1000 + index,
                    **sampling,  # type: ignore[arg-type]
                ),
                category="ab"[index % 2],
            )
        )
    return requests
