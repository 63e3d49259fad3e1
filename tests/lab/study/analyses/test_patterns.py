"""Patterns of attention and the share of a Toeplitz matrix, on matrices of which they are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from floater.lab.study.analyses import draw
from floater.lab.study.analyses.patterns import first_column, pattern, toeplitz, toeplitz_share
from floater.transformer import FloaterConfig, FloaterModel

INDEX = torch.arange(32.0)
DISTANCE = INDEX[None, :] - INDEX[:, None]


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        (-DISTANCE.abs(), "locally"),
        (0.5 * DISTANCE.abs(), "globally"),
        (0 * DISTANCE, "broadly"),
        (-4 * (DISTANCE + 1).abs(), "to previous positions"),
        (-4 * (DISTANCE - 1).abs(), "to next positions"),
        (torch.where(INDEX == 0, 9.0, -DISTANCE.abs()), "locally"),  # whatever the first column is
    ],
)
def test_a_head_has_the_pattern_of_its_formula(logits: Tensor, expected: str) -> None:
    """The five patterns of Ke et al. 2021, Figure 5."""
    assert pattern(logits) == expected
    assert pattern(logits + torch.randn(32, 1)) == expected, "constants of a query change no weight"


def test_the_nearest_toeplitz_matrix_is_the_orthogonal_projection() -> None:
    matrix = torch.randn(3, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    nearest = toeplitz(matrix)
    torch.testing.assert_close(toeplitz(nearest), nearest)
    assert torch.equal(nearest[:, 1:, 1:], nearest[:, :-1, :-1])
    other = toeplitz(torch.randn(3, 7, 7, dtype=torch.float64))
    torch.testing.assert_close(
        ((matrix - nearest) * other).sum((-2, -1)), torch.zeros(3, dtype=torch.float64)
    )


def test_the_share_of_random_entries_is_that_of_the_free_diagonals() -> None:
    """Of T^2 - 1 independent entries around their mean, 2 T - 2 means of diagonals are free."""
    length, draw_ = 40, torch.Generator().manual_seed(0)
    share = toeplitz_share(torch.randn(400, length, length, generator=draw_)).mean()
    assert float(share) == pytest.approx((2 * length - 2) / (length**2 - 1), rel=0.03)


@pytest.mark.parametrize(("position", "least", "most"), [("t5", 1.0, 1.0), ("tupe_a", 0.0, 0.3)])
def test_relative_biases_are_toeplitz_and_products_of_positions_are_not(
    position: str, least: float, most: float
) -> None:
    torch.manual_seed(0)
    config = FloaterConfig.preset("tiny", vocab_size=9, position=position, training_length=32)
    plot = draw(FloaterModel(config), "attention")
    shares = plot.numbers["toeplitz_share"]
    assert (shares >= least - 1e-5).all()
    assert (shares <= most + 1e-5).all()
    assert "Toeplitz" in plot.text
    assert len(plot.numbers["first_column"]) == len(shares) == 4


def test_the_first_column_is_measured_in_deviations_of_the_others() -> None:
    logits = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))
    logits[0, 1:, 0] += 3
    assert first_column(logits).tolist() == pytest.approx([3, 0], abs=0.3)
