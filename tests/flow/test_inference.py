"""Solves within `torch.inference_mode()` are those without gradients."""

import pytest
import torch

from floater.flow import FlowEncoder, MLPField, SolverState, solve, solve_dense


def problem():
    torch.manual_seed(0)
    field = MLPField(16)
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(2)
    return field, torch.randn(3, 16), torch.arange(200) * 0.1


@pytest.mark.parametrize("method", ["auto", "dopri5", "rk4"])
def test_a_new_mesh_is_measured_in_inference_mode(method):
    field, start, times = problem()
    with torch.no_grad():
        expected = solve(field, start, times, method=method)
    with torch.inference_mode():
        mine = solve(field, start.clone(), times.clone(), method=method)
    assert torch.equal(mine, expected)


def test_what_is_kept_of_such_a_solve_serves_a_training():
    field, start, times = problem()
    state = SolverState()
    with torch.inference_mode():
        solve_dense(field, start, 20.0, state=state)
    solve(field, start, times, state=state).square().sum().backward()
    assert all(bool(p.grad.any()) for p in field.parameters())


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_an_encoder_is_evaluated_in_inference_mode(fraction):
    field, _, _ = problem()
    encoder = FlowEncoder(field, 16, blocks=(0,), names=("input",)).eval()
    torch.nn.init.normal_(encoder.start)
    positions = torch.arange(500)[None] + fraction
    with torch.no_grad():
        expected = encoder(positions).at(0, "input")
    with torch.inference_mode():
        assert torch.equal(encoder(positions).at(0, "input"), expected)
