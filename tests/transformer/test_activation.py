"""Activations against those of Transformers."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from transformers.activations import ACT2FN

from floater.transformer.blocks import activation


@pytest.mark.parametrize("name", [name for name in ACT2FN if name not in ("prelu", "xielu")])  # with weights
def test_it_is_the_function_of_its_name(name: str) -> None:
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), ACT2FN[name](x), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast", "gelu_accurate", "gelu"])
def test_a_gelu_keeps_its_input_alone_for_the_gradient(name: str) -> None:
    kept: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x

    x = torch.randn(5, requires_grad=True)
    with saved_tensors_hooks(keep, lambda x: x):
        activation(name)(x)
    assert len(kept) == 1
    assert kept[0] is x or kept[0].equal(x)
