"""Bounds of what a cut may keep, and the ties that they excuse."""

from __future__ import annotations

import math

import pytest
import torch

from draftsmith.engine.near_cut import margin_at_cut, support_bounds
from draftsmith.engine.sampling import cut
from draftsmith.engine.types import Sampling

WARM = torch.tensor([3.0, 2.0, 1.0, 0.99, -1.0])


@pytest.mark.parametrize(
    ("sampling", "tolerance", "firm", "possible"),
    [
        (Sampling(), 0.1, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        (Sampling(top_k=3), 0.0, [0, 1, 2], [0, 1, 2]),
        (Sampling(top_k=3), 0.02, [0, 1], [0, 1, 2, 3]),
        (Sampling(top_k=2), 0.02, [0, 1], [0, 1]),
        (Sampling(min_p=math.exp(-2.005)), 0.0, [0, 1, 2], [0, 1, 2]),
        (Sampling(min_p=math.exp(-2.005)), 0.02, [0, 1], [0, 1, 2, 3]),
        (Sampling(min_p=math.exp(-3.99)), 0.02, [0, 1, 2, 3], [0, 1, 2, 3, 4]),
        (Sampling(top_p=0.85), 0.0, [0, 1, 2], [0, 1, 2]),
        (Sampling(top_p=0.85), 0.1, [0, 1], [0, 1, 2, 3]),
    ],
)
def test_the_support_is_bounded_from_both_sides(
    sampling: Sampling, tolerance: float, firm: list[int], possible: list[int]
) -> None:
    bounds = support_bounds(WARM, sampling, tolerance)
    assert bounds.firm.nonzero().flatten().tolist() == firm
    assert bounds.possible.nonzero().flatten().tolist() == possible
    if tolerance == 0.0:
        assert torch.isfinite(cut(WARM, sampling)).equal(bounds.firm)


def test_a_token_far_below_the_last_kept_one_is_at_the_cut_when_its_mass_limit_is_near() -> None:
    """Masses 0.5, 0.4, 0.1: at top-p 0.9 the third token is one rounding away, 1.4 logits down."""
    warm = torch.tensor([0.5, 0.4, 0.1]).log()
    near = support_bounds(warm, Sampling(top_p=0.9), 1e-4)
    assert near.firm.tolist() == [True, True, False]
    assert near.possible.tolist() == [True, True, True]
    far = support_bounds(warm, Sampling(top_p=0.85), 1e-4)
    assert far.possible.tolist() == [True, True, False]


def test_bounds_hold_for_random_rows_under_random_changes() -> None:
    generator = torch.Generator().manual_seed(0)
    for sampling in (Sampling(top_k=7), Sampling(top_p=0.8), Sampling(min_p=0.1)):
        for _ in range(50):
            warm = 2 * torch.randn(40, generator=generator)
            bounds = support_bounds(warm, sampling, 0.1)
            change = 0.05 * (2 * torch.rand(40, generator=generator) - 1)
            kept = torch.isfinite(cut(warm + change, sampling))
            assert bool((kept | ~bounds.firm).all())
            assert bool((bounds.possible | ~kept).all())


def test_a_token_kept_by_a_change_within_the_noise_is_a_tie() -> None:
    """Token 3 just misses the cut of top-k 3, and its noise makes it win were it kept."""
    noise = torch.tensor([0.0, 0.0, 0.0, 5.0, 0.0])
    sampling = Sampling(temperature=1.0, top_k=3)
    assert margin_at_cut(WARM, noise, sampling, 3, 0.02) == 0.0
    assert margin_at_cut(WARM, noise, sampling, 3, 0.001) is None
    assert margin_at_cut(WARM, noise, sampling, 4, 0.02) is None


def test_the_last_kept_token_is_no_excuse_for_the_runner_up() -> None:
    """Stock's choice has the lowest logit that top-k 2 keeps, far above the first cut one."""
    warm, noise = torch.tensor([3.0, 2.0, -4.0]), torch.tensor([0.0, 5.0, 0.0])
    sampling = Sampling(temperature=1.0, top_k=2)
    assert margin_at_cut(warm, noise, sampling, 0, 0.02) is None
