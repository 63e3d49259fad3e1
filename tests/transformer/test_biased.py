"""Attention with a learned bias against PyTorch's own, and what it keeps."""

import pytest
import torch
from torch.nn import functional as F

from floater.flow import SecondDerivativeError
from floater.transformer import biased
from floater.transformer.biased import biased_attention


def tensors(shape, length=5, slots=7, seed=0):
    """Queries, keys, values and a bias, in float64."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=draw, dtype=torch.float64)

    tensors_ = normal(2, 4, length, 3), normal(2, 4, slots, 3), normal(2, 4, slots, 3), normal(*shape)
    return [x.requires_grad_() for x in tensors_]


@pytest.mark.parametrize("piece", [1, 20, 150, 2**18])  # a row, some rows, some heads, all of it
@pytest.mark.parametrize(
    "shape", [(2, 4, 5, 7), (1, 4, 5, 7), (2, 1, 5, 7), (4, 5, 7), (5, 7), (1, 4, 1, 7), (4, 5, 1)]
)
def test_values_and_gradients_are_those_of_the_plain_formula(monkeypatch, shape, piece):
    monkeypatch.setattr(biased, "_PIECE", piece)
    inputs = tensors(shape)
    q, k, v, bias = inputs
    plain = (q @ k.mT * 0.3 + bias).softmax(-1) @ v
    ours = biased_attention(q, k, v, bias, 0.3)
    assert torch.allclose(ours, plain, atol=1e-12)
    weight = torch.arange(plain.numel(), dtype=torch.float64).view_as(plain).sin()
    expected = torch.autograd.grad(plain, inputs, weight)
    for actual, wanted in zip(torch.autograd.grad(ours, inputs, weight), expected, strict=True):
        assert torch.allclose(actual, wanted, atol=1e-12)


def test_a_second_derivative_is_refused():
    """By `torch.autograd.grad`, too, which leaves out what does not lead to its inputs."""
    inputs = tensors((4, 5, 7))
    (gradient,) = torch.autograd.grad(
        biased_attention(*inputs, 0.3).sum() + inputs[0].pow(3).sum(), inputs[0], create_graph=True
    )
    with pytest.raises(SecondDerivativeError, match=r"set_attn_implementation\('eager'\)"):
        torch.autograd.grad(gradient.sum(), inputs[0])


def test_queries_without_a_key_give_zeros_and_no_gradient():
    q, k, v, bias = tensors((2, 1, 5, 7))
    closed = torch.zeros(2, 1, 5, 7, dtype=torch.bool)
    closed[0, :, 2] = True  # a query that may attend to nothing
    closed[1, :, :, 3:] = True  # keys that are padding
    out = biased_attention(q, k, v, bias.masked_fill(closed, -torch.inf), 0.3)
    assert not out[0, :, 2].any()
    q_gradient, k_gradient, v_gradient, bias_gradient = torch.autograd.grad(
        out.square().sum(), (q, k, v, bias)
    )
    assert not any(
        x.any()
        for x in (q_gradient[0, :, 2], k_gradient[1, :, 3:], v_gradient[1, :, 3:], bias_gradient[closed])
    )
    assert bias_gradient.isfinite().all()
    assert bias_gradient[~closed].any()


def test_no_weights_are_kept():
    """All that is saved of size T x S is the bias, and PyTorch's own path saves more."""

    def squares(attention):
        q, k, v, bias = tensors((1, 4, 64, 64), 64, 64)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
            attention(q, k, v, bias)
        return {x.data_ptr() for x in saved if x.shape[-2:] == (64, 64)} - {bias.data_ptr()}

    assert not squares(lambda q, k, v, bias: biased_attention(q, k, v, bias, 0.3))
    assert squares(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, bias, scale=0.3))
