"""Systems of several threads: MKL's LU of a batch of large matrices hangs in them, or is wrong."""

import pytest
import torch

from floater.flow import solve
from floater.flow.linear_systems import BATCHED, lu_factors
from floater.flow.linear_systems import solve as solve_systems
from processes import in_process


class Decay(torch.nn.Module):
    """dp/dt = -rates p."""

    smooth = True
    rates = torch.logspace(0, 6, 32, dtype=torch.float64)

    def forward(self, t, p):
        return -self.rates * p


def in_threads():
    """Solve a stiff flow and systems of a larger width in two threads; return 0 if the residuals vanish."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    matrices, right = (torch.randn(4, 256, 256, dtype=torch.float64) for _ in range(2))
    errors = []
    for _ in range(5):
        errors.append(matrices @ solve_systems(matrices, right) - right)
        errors.append(matrices @ torch.linalg.lu_solve(*lu_factors(matrices), right) - right)
    times = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    p = solve(Decay(), torch.ones(2, 32, dtype=torch.float64), times)
    errors.append(1e-4 * (p - torch.exp(-Decay.rates * times[:, None])[:, None]))
    return int(not all(bool(error.abs().max() < 1e-8) for error in errors))


def test_matrices_of_several_threads_are_factorized_one_after_the_other(tmp_path):
    assert in_process(in_threads, said=tmp_path / "said", seconds=120) == 0, (tmp_path / "said").read_text()


@pytest.mark.parametrize("width", [BATCHED, BATCHED + 1])
def test_a_batch_of_any_shape_has_its_solutions_and_gradients(width):
    generator = torch.Generator().manual_seed(width)
    matrices, right = (
        torch.randn(2, 3, width, width, dtype=torch.float64, generator=generator, requires_grad=True)
        for _ in range(2)
    )
    x = solve_systems(matrices, right)
    torch.testing.assert_close(matrices @ x, right, atol=1e-9, rtol=0)
    x.sum().backward()
    # Of X = A^-1 B, whose sum has the gradients A^-T 1 and -(A^-T 1) X^T.
    adjoint = torch.linalg.inv(matrices.detach()).mT @ torch.ones_like(right)
    torch.testing.assert_close(right.grad, adjoint)
    torch.testing.assert_close(matrices.grad, -adjoint @ x.detach().mT)


@pytest.mark.parametrize("width", [BATCHED, BATCHED + 1])
def test_a_batch_without_matrices_has_no_solutions(width):
    matrices = torch.ones(0, width, width)
    factors, pivots = lu_factors(matrices)
    assert (factors.shape, pivots.shape) == (matrices.shape, (0, width))
    assert solve_systems(matrices, torch.ones(0, width, 2)).shape == (0, width, 2)
