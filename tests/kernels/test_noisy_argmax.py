"""The arg-max under noise, drawn for tokens that can still win, is that of the full draw."""

import pytest
import torch

from draftsmith.kernels.backend import Backend, use_backend
from draftsmith.kernels.errors import KernelInputError
from draftsmith.kernels.noise import gumbel, noisy_argmax

BACKENDS: tuple[Backend, ...] = ("cpp", "reference")
SIZES = (1, 2, 3, 63, 64, 65, 200, 1000, 5003)
LARGE = 49_152  # of SmolLM2's vocabulary


def full_draw(values: torch.Tensor, seed: int, position: int) -> int:
    return int((values + gumbel(seed, position, values.numel())).argmax())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 6.0, 40.0, 1e5])
def test_it_is_the_argmax_of_the_full_draw(
    spread: float, backend: Backend, request: pytest.FixtureRequest
) -> None:
    if backend == "cpp":
        request.getfixturevalue("cpp")
    generator = torch.Generator().manual_seed(3)
    for size in SIZES:
        for position in range(12):
            values = torch.randn(size, generator=generator) * spread
            with use_backend(backend):
                assert noisy_argmax(values, 17, position) == full_draw(values, 17, position)


@pytest.mark.parametrize("spread", [0.0, 2.0, 8.0])
def test_rows_of_a_real_vocabulary(spread: float, cpp: None) -> None:
    generator = torch.Generator().manual_seed(4)
    for position in range(40):
        values = torch.randn(LARGE, generator=generator) * spread
        assert noisy_argmax(values, 2**64 - 1, position) == full_draw(values, 2**64 - 1, position)


def test_the_lowest_column_wins_among_equal_sums(cpp: None) -> None:
    """Scores so large that no noise changes them: all sums are equal."""
    for size in (5, 64, 130, 1000):
        assert noisy_argmax(torch.full((size,), 1e9), 1, 2) == 0
    values = torch.zeros(300)
    values[[70, 130, 299]] = 1e9
    assert noisy_argmax(values, 1, 2) == 70


@pytest.mark.parametrize("backend", BACKENDS)
def test_columns_of_minus_infinity_never_win(
    backend: Backend, request: pytest.FixtureRequest
) -> None:
    if backend == "cpp":
        request.getfixturevalue("cpp")
    with use_backend(backend):
        for position in range(30):
            values = torch.full((200,), -torch.inf)
            values[[3, 77, 191]] = torch.tensor([0.5, 1.0, -40.0])
            assert noisy_argmax(values, 9, position) == full_draw(values, 9, position)
        assert noisy_argmax(torch.full((100,), -torch.inf), 1, 2) == -1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", [0, 63, 64, 99])
def test_a_row_with_nan_leaves_nothing_to_choose(
    place: int, backend: Backend, request: pytest.FixtureRequest
) -> None:
    if backend == "cpp":
        request.getfixturevalue("cpp")
    values = torch.arange(100.0)
    values[place] = torch.nan
    with use_backend(backend):
        assert noisy_argmax(values, 1, 2) == -1


def test_infinite_scores_beat_all_others(cpp: None) -> None:
    values = torch.zeros(200)
    values[[150, 170]] = torch.inf
    assert noisy_argmax(values, 1, 2) == full_draw(values, 1, 2) == 150


def test_a_view_with_strides_is_read_right(cpp: None) -> None:
    values = torch.randn(500, 2, generator=torch.Generator().manual_seed(5))[:, 1]
    assert not values.is_contiguous()
    assert noisy_argmax(values, 5, 6) == full_draw(values, 5, 6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(0), "values have 0 numbers; 1 to 2\\^34 are needed"),
        (torch.zeros(2, 3), "fp32 \\[V\\] on the CPU is needed"),
        (torch.zeros(3, dtype=torch.float64), "torch.float64"),
    ],
)
def test_other_values_are_refused(values: torch.Tensor, message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        noisy_argmax(values, 1, 2)
