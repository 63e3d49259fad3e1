"""The bounded field: its ball, its solutions, its place in the position model."""

import pytest
import torch

from floater import PositionError, Positions, build
from floater.flow import (
    BoundedField,
    MLPField,
    flow_error,
    init_small_,
    init_zero_,
    reference_solve,
    solve,
    solve_dense,
)

FAR = 40.0


def field(scale=1.0, dim=6):
    torch.manual_seed(0)
    bounded = BoundedField(dim)
    with torch.no_grad():
        for parameter in bounded.parameters():
            parameter *= scale
    return bounded


@pytest.mark.parametrize("scale", [1.0, 4.0])
@torch.no_grad()
def test_no_solution_leaves_the_ball(scale):
    """Started on its surface, and in it, at any weights; the plain field's vectors leave any ball."""
    bounded = field(scale)
    start = (
        bounded.radius
        * torch.nn.functional.normalize(torch.randn(4, 6))
        * torch.tensor([[1], [1], [0.5], [0]])
    )
    times = torch.linspace(0, FAR, 500, dtype=torch.float64)
    p = solve_dense(bounded, start, FAR).at(times)
    assert float(p.norm(dim=-1).max()) <= bounded.radius * (1 + 1e-5)  # tolerance of the solve 1e-6
    plain = solve_dense(MLPField(6), start, FAR).at(times).norm(dim=-1)
    assert float(plain.max()) > bounded.radius


@torch.no_grad()
def test_what_lies_outside_is_drawn_in():
    bounded = field()
    p = solve_dense(bounded, torch.full((1, 6), 3 * bounded.radius), 20.0).at(torch.tensor([0.0, 20.0]))
    assert float(p[1].norm()) < bounded.radius


@torch.no_grad()
def test_vectors_go_on_moving_far_beyond_the_training_span():
    bounded = init_small_(field(dim=16), span=12.0)
    times = torch.arange(0, 120.0, 0.5, dtype=torch.float64)  # ten times as far
    steps = solve_dense(bounded, 0.02 * torch.randn(1, 16), 120.0).at(times)[:, 0].diff(dim=0).norm(dim=-1)
    assert float(steps[-48:].mean()) > 0.2 * float(steps[:24].mean())


def test_a_solve_is_as_accurate_as_any_and_its_gradients_are_those_of_autograd():
    bounded = field().double()
    start, at = torch.randn(3, 6, dtype=torch.float64), torch.tensor([0.3, 4.0, 20.0], dtype=torch.float64)
    actual = solve_dense(bounded, start, 20.0, rtol=1e-9, atol=1e-9).at(at)
    assert flow_error(actual.detach(), reference_solve(bounded, start, at).detach()) < 1e-7
    grads = torch.autograd.grad(actual.sin().sum(), list(bounded.parameters()))
    other = solve(bounded, start, at, method="dopri5", rtol=1e-9, atol=1e-9)
    theirs = torch.autograd.grad(other.sin().sum(), list(bounded.parameters()))
    for a, b in zip(grads, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_position_model_takes_it():
    torch.manual_seed(0)
    model = build("floater", dim=8, heads=2, layers=2, max_length=64, field="bounded")
    with torch.no_grad():
        at = Positions.events(torch.tensor([[0.0, 3.0, 64.0, 640.0]], dtype=torch.float64))
        state = model.prepare(at)
        (flow,) = model.flows
        assert isinstance(flow.field, BoundedField)
        for layer in range(2):
            assert float(state.vectors[layer].at(layer, "key").norm(dim=-1).max()) <= flow.field.radius
    zero = build("floater", dim=8, heads=2, layers=2, max_length=64, field="bounded", start="zero")
    assert not zero.prepare(at).vectors[1].at(1, "value").any()  # h = 0: the plain Transformer
    with pytest.raises(PositionError, match="field='bounded' goes with activation='tanh', not with 'relu'"):
        build("floater", dim=8, heads=2, layers=2, max_length=64, field="bounded", activation="relu")


def test_a_field_without_weights_stands_still_at_zero():
    assert not init_zero_(field())(torch.tensor(3.0), torch.zeros(2, 6)).any()
    with pytest.raises(ValueError, match=r"pull is 0\.0; it must be positive"):
        BoundedField(4, pull=0.0)
