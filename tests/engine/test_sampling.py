"""Processors and choice: each processor's law, history along a draft path, rows independent of each
other.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from scipy.stats import chisquare

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.sampling import (
    RowContext,
    check_sampling,
    choose,
    cut,
    draw,
    probabilities,
    scores,
)
from draftsmith.engine.types import Sampling


def context(
    tokens: list[int], prompt_len: int = 1, path: tuple[int, ...] = (), **fields: object
) -> RowContext:
    return RowContext(Sampling(**fields), prompt_len, tokens, path)  # type: ignore[arg-type]


def test_greedy_is_the_argmax_and_prefers_the_lowest_id_at_ties() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    assert choose(logits, [context([0])]) == [1]


def test_repetition_penalty_covers_prompt_output_and_path() -> None:
    logits = torch.tensor([[2.0, 1.9, 1.8, 1.7, 1.6]])
    row = context([0, 1], prompt_len=1, path=(2,), repetition_penalty=1.5)
    assert choose(logits, [row]) == [3]


def test_repetition_penalty_multiplies_negative_logits() -> None:
    logits = torch.tensor([[-1.0, -1.2]])
    assert choose(logits, [context([0], repetition_penalty=1.5)]) == [1]


def test_presence_and_frequency_penalties_cover_the_output_only() -> None:
    logits = torch.tensor([[2.0, 1.5, 0.0]])
    assert choose(logits, [context([0], prompt_len=1, presence_penalty=1.0)]) == [0]
    assert choose(logits, [context([0, 0], prompt_len=1, presence_penalty=1.0)]) == [1]
    twice = context([1, 0], prompt_len=1, path=(0,), frequency_penalty=0.3)
    assert choose(logits, [twice]) == [1]


def test_min_tokens_bans_eos_and_stop_tokens_until_reached() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, 3.0]])
    early = context([0, 3], prompt_len=1, min_tokens=3, stop_token_ids=(2,))
    late = context([0, 3, 3, 3], prompt_len=1, min_tokens=3, stop_token_ids=(2,))
    assert choose(logits, [early], eos_ids=(1,)) == [3]
    assert choose(logits, [late], eos_ids=(1,)) == [1]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_p": 0.75}, [0, 1]),
        ({"top_p": 0.5}, [0]),
        ({"min_p": 0.35}, [0, 1]),
        ({"top_k": 3, "top_p": 0.6}, [0, 1]),
    ],
)
def test_cuts_keep_the_tokens_they_should(fields: dict[str, float], kept: list[int]) -> None:
    row = torch.tensor([0.5, 0.25, 0.15, 0.10]).log()
    left = cut(row, Sampling(temperature=1.0, **fields))  # type: ignore[arg-type]
    assert torch.isfinite(left).nonzero().squeeze(-1).tolist() == kept


def cut_by_sorting(row: torch.Tensor, s: Sampling) -> list[int]:
    """The definition: everything sorted, in double precision."""
    kept = list(range(len(row)))
    values = row.double().tolist()
    if s.min_p > 0:
        kept = [i for i in kept if row[i] >= row.max() + torch.tensor(s.min_p).log()]
    kept.sort(key=lambda i: (-values[i], i))
    if s.top_k:
        kept = kept[: s.top_k]
    if s.top_p < 1:
        weights = (row[kept].double() - row.max().double()).exp()
        before = (weights.cumsum(0) - weights) / weights.sum()
        kept = [i for i, mass in zip(kept, before.tolist(), strict=True) if mass < s.top_p]
    return sorted(kept)


@pytest.mark.parametrize("size", [7, 300, 5_000])
@pytest.mark.parametrize("grid", [None, 0.5], ids=["distinct", "many ties"])
@pytest.mark.parametrize("spread", [0.05, 1.0, 4.0])
def test_cuts_equal_those_of_a_full_sort(size: int, grid: float | None, spread: float) -> None:
    row = torch.randn(size, generator=torch.Generator().manual_seed(size)) * spread
    row = row if grid is None else (row / grid).round() * grid
    row[3] = -torch.inf  # banned by min_tokens
    for min_p, top_k, top_p in product((0.0, 0.3), (0, 3, size - 2, size + 5), (0.1, 0.95, 1.0)):
        sampling = Sampling(temperature=1.0, min_p=min_p, top_k=top_k, top_p=top_p)
        wanted = [i for i in cut_by_sorting(row, sampling) if row[i] > -torch.inf]
        left = torch.isfinite(cut(row, sampling)).nonzero().squeeze(-1).tolist()
        assert left == wanted, sampling


def test_cuts_keep_the_lower_ids_among_equals() -> None:
    left = cut(torch.zeros(6), Sampling(temperature=1.0, top_k=3))
    assert torch.isfinite(left).nonzero().squeeze(-1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("fields", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.2}])
def test_coupled_noise_samples_the_warped_law(fields: dict[str, float]) -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0))
    first = context([0], temperature=0.8, **fields)
    law = probabilities(logits, [first])[0]
    counts = torch.zeros(12)
    for seed in range(2_000):
        (token,) = choose(logits, [context([0], temperature=0.8, seed=seed, **fields)])
        counts[token] += 1
    inside = law > 0
    assert float(counts[~inside].sum()) == 0.0
    assert chisquare(counts[inside].numpy(), (law[inside] * 2_000).numpy()).pvalue > 1e-4


def test_a_row_is_chosen_alike_alone_and_among_others() -> None:
    logits = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    rows = [
        context([0] * (i + 1), temperature=0.9 if i % 2 else 0.0, top_p=0.9, seed=7)
        for i in range(5)
    ]
    alone = [choose(logits[i : i + 1], [rows[i]])[0] for i in range(5)]
    assert choose(logits, rows) == alone


def test_a_cut_support_gets_the_same_noise_as_the_whole_vocabulary() -> None:
    """Noise belongs to (seed, position, token id): cutting the support must not shift it."""
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(2))
    whole = scores(logits, [context([0], temperature=1.0, seed=5)])[0]
    part = scores(logits, [context([0], temperature=1.0, seed=5, top_k=8)])[0]
    inside = torch.isfinite(part)
    assert int(inside.sum()) == 8
    assert torch.equal(whole[inside], part[inside])


def test_a_trimmed_row_scores_its_ids_as_the_whole_row_does() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3))
    ids = torch.tensor([3, 7, 8, 20])
    row = context([0, 7], temperature=0.7, seed=9, repetition_penalty=1.3, presence_penalty=0.5)
    whole = scores(logits, [row])[0]
    trimmed = scores(logits[:, ids], [row], token_ids=ids)[0]
    assert torch.equal(trimmed, whole[ids])


def test_draw_never_returns_a_token_without_mass() -> None:
    weights = torch.tensor([0.0, 0.2, 0.0, 0.8, 0.0])
    assert {draw(weights, u) for u in (1e-12, 0.1999, 0.2001, 1 - 1e-12)} == {1, 3}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "keeps no token"),
        ({"top_k": 65}, "top_k is 65; give a value between 0 and 64"),
        ({"min_tokens": 200}, "min_tokens is 200"),
        ({"stop_token_ids": (64,)}, "leave the vocabulary of 64"),
        ({"stop_strings": ("",)}, "empty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
    ],
)
def test_bad_sampling_is_refused_with_value_and_limit(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(EngineInputError, match=message):
        check_sampling(Sampling(**fields), 64)  # type: ignore[arg-type]
