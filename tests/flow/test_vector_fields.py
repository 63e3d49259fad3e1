"""The vector fields against their formulas and the paper's parameter counts."""

import pytest
import torch
from torch import nn

from floater.flow import (
    MLPField,
    SinusoidField,
    SumField,
    ZeroField,
    init_small_,
    init_zero_,
    sinusoid,
    solve,
)
from floater.flow.vector_fields import BoundedField


@pytest.mark.parametrize("activation", ["tanh", "silu", "gelu", "selu", "relu"])
def test_mlp_has_the_parameters_of_table_6(activation):
    assert sum(p.numel() for p in MLPField(512, activation=activation).parameters()) == 526_336


def test_mlp_hidden_size():
    d, m = 6, 10
    assert sum(p.numel() for p in MLPField(d, m).parameters()) == (d + 1) * m + m + (m + 1) * d + d


def test_mlp_written_out_entry_by_entry():
    torch.manual_seed(0)
    field = MLPField(2, 3).double()
    t, p = torch.tensor(0.7, dtype=torch.float64), torch.tensor([[0.3, -1.2]], dtype=torch.float64)
    w1, b1, w2, b2 = (x.tolist() for x in field.parameters())
    x = [0.3, -1.2, 0.7]
    hidden = [
        float(torch.tensor(sum(w * v for w, v in zip(row, x, strict=True)) + b, dtype=torch.float64).tanh())
        for row, b in zip(w1, b1, strict=True)
    ]
    expected = [
        sum(w * v for w, v in zip(row, [*hidden, 0.7], strict=True)) + b
        for row, b in zip(w2, b2, strict=True)
    ]
    torch.testing.assert_close(field(t, p)[0], torch.tensor(expected, dtype=torch.float64))


def test_unknown_activation_names_the_nearest_first():
    with pytest.raises(ValueError, match=r"unknown activation 'rulu'; valid: 'relu', "):
        MLPField(4, activation="rulu")


def test_smooth_says_which_fields_have_kinks():
    smooth = {a: MLPField(4, activation=a).smooth for a in ("tanh", "silu", "gelu", "selu", "relu")}
    assert smooth == {"tanh": True, "silu": True, "gelu": True, "selu": False, "relu": False}
    assert SumField(ZeroField(), MLPField(4)).smooth
    assert not SumField(SinusoidField(4), MLPField(4, activation="relu")).smooth


@pytest.mark.parametrize("span", [1, 5, 51, 200])
@pytest.mark.parametrize("dim", [16, 128, 512])
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_small_keeps_displacements_of_order_one_over_the_span(span, dim, activation):
    torch.manual_seed(1)
    field = init_small_(MLPField(dim, activation=activation), span)
    start = 0.02 * torch.randn(6, dim)
    with torch.no_grad():
        p = solve(field, start, torch.linspace(0, span, 20))
    displacement = (p - start).square().mean(dim=(1, 2)).sqrt().max()
    assert 0.05 < displacement < 3


def test_small_needs_a_positive_span():
    with pytest.raises(ValueError, match="span must be a positive time, got 0"):
        init_small_(MLPField(4), 0)


def test_zero_is_exact_and_gradients_still_reach_the_output_layer():
    torch.manual_seed(0)
    field = init_zero_(MLPField(4))
    start = torch.randn(3, 4)
    p = solve(field, start, torch.tensor([0.5, 10.0]))
    assert torch.equal(p, start.expand(2, 3, 4))
    p.sum().backward()
    assert field.outer.weight.grad.abs().min() > 0
    assert field.inner.weight.abs().min() > 0


@pytest.mark.parametrize("dim", [0, 5])
def test_sinusoids_need_an_even_dim(dim):
    with pytest.raises(ValueError, match=f"even number .* got {dim}"):
        SinusoidField(dim)
    with pytest.raises(ValueError, match=f"even number .* got {dim}"):
        sinusoid(torch.arange(3), dim)


def test_sinusoid_is_equation_6():
    table = sinusoid(torch.tensor([[3, 500]]), 8)
    for row, i in enumerate((3, 500)):
        for j in range(8):
            angle = torch.tensor(i * 1e-4 ** ((j - j % 2) / 8), dtype=torch.float64)
            expected = angle.cos() if j % 2 else angle.sin()
            assert abs(float(table[0, row, j]) - float(expected)) < 1e-7  # one float32 rounding
    assert table.dtype == torch.float32
    assert sinusoid(torch.ones(2, dtype=torch.float64), 8).dtype == torch.float64


@pytest.mark.parametrize("delta", [1.0, 0.1])
def test_sinusoid_field_is_the_derivative_of_equation_6(delta):
    field, t = SinusoidField(16, delta), torch.tensor(7.3, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.functional.jacobian(lambda x: sinusoid(x / delta, 16), t)
    torch.testing.assert_close(
        field(t.detach(), torch.zeros(2, 16, dtype=torch.float64)), expected.expand(2, 16)
    )


def test_sum_of_fields_adds_velocities():
    torch.manual_seed(0)
    mlp, wave = MLPField(4), SinusoidField(4)
    t, p = torch.tensor(1.5), torch.randn(2, 4)
    torch.testing.assert_close(SumField(mlp, wave)(t, p), mlp(t, p) + wave(t, p))


@pytest.mark.parametrize("make", [lambda: MLPField(4), lambda: SinusoidField(4)])
def test_fields_made_on_the_meta_device_work_once_loaded(make):
    torch.manual_seed(0)
    field = make()
    with torch.device("meta"):
        empty = make()
    empty.to_empty(device="cpu").load_state_dict(field.state_dict())
    t, p = torch.tensor(0.3), torch.randn(2, 4)
    assert torch.equal(empty(t, p), field(t, p))


@pytest.mark.parametrize("field", [MLPField(8), BoundedField(8)])
def test_tools_that_replace_linear_layers_leave_fields_alone(field):
    # quantizers, such as torchao's, and PEFT's "all-linear" choose by isinstance
    assert not any(isinstance(module, nn.Linear) for module in field.modules())
