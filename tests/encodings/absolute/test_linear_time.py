"""Linear functions of the time: their values, and what a regression on times finds."""

import numpy as np
import torch

from floater import Positions, build

SIZES = {"dim": 8, "heads": 2, "layers": 3, "max_length": 16}


def test_vectors_are_those_of_linear_layers_of_the_time():
    model = build("linear_time", **SIZES, blocks=[0, 2])
    times = torch.tensor([[0.0, 0.25, 700.5], [3.0, 8.0, 9.0]])
    x = torch.randn(2, 3, 8)
    state = model.prepare(Positions.times(times))
    for index, layer in enumerate(model.blocks):
        linear = torch.nn.Linear(1, 8)
        linear.weight.data, linear.bias.data = model.slope.data[index][:, None], model.offset.data[index]
        actual = model.embed(x, state) if layer == 0 else model.block(x, state, layer)
        torch.testing.assert_close(actual, x + linear(times[..., None] / 16))
    assert model.block(x, state, 1) is x


def test_a_regression_on_the_times_finds_the_parameters():
    """numpy's least squares is the oracle."""
    model = build("linear_time", **SIZES).double()
    times = torch.linspace(0, 40, 11, dtype=torch.double)[None] ** 1.5
    vectors = model.vectors(model.prepare(Positions.times(times)), 0)[0].detach().numpy()
    slope, offset = np.polyfit(times[0].numpy() / 16, vectors, 1)
    np.testing.assert_allclose(slope, model.slope[0].detach().numpy(), atol=1e-9)
    np.testing.assert_allclose(offset, model.offset[0].detach().numpy(), atol=1e-9)


def test_gradients_are_sums_over_times():
    model = build("linear_time", **SIZES)
    times = torch.tensor([[0.0, 2.5, 4.0]])
    model.embed(torch.zeros(2, 3, 8), model.prepare(Positions.times(times))).sum().backward()
    torch.testing.assert_close(model.slope.grad, torch.full((1, 8), 2 * 6.5 / 16))
    torch.testing.assert_close(model.offset.grad, torch.full((1, 8), 6.0))
