"""Encodings under the transforms of `torch.func`: the gradients of autograd, or one that says why not."""

import pytest
import torch
from torch.func import functional_call, grad, vmap

from floater import catalogue
from floater.flow import FlowEncoder, FlowTransformError
from floater.testing.case import Case
from floater.testing.inputs import embeddings, mask_positions

RECURRENT = {"rnn_transformer", "rr_transformer"}
"""PyTorch's recurrent cells have no rule for `vmap`, and those of packed texts (`pnat`) none for `grad`."""


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # SDPA under vmap
@pytest.mark.parametrize("name", sorted(catalogue().keys() - {"pnat"}))
def test_gradients_are_those_of_autograd_whole_and_by_sample(name):
    case = Case(name)
    stack = case.stack().eval()
    x = embeddings(3, 5)
    positions = mask_positions(stack.position, torch.ones(1, 5, dtype=torch.long))
    weights = dict(stack.named_parameters())

    def loss(weights, x):
        return functional_call(stack, weights, (x, positions)).sin().sum()

    whole = grad(loss)
    by_sample = vmap(lambda weights, x: grad(loss)(weights, x[None]), in_dims=(None, 0), randomness="same")
    if any(isinstance(part, FlowEncoder) for part in stack.modules()):
        with pytest.raises(FlowTransformError):
            whole(weights, x)
        return
    loss(weights, x).backward()
    expected = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in weights.items()}
    torch.testing.assert_close(whole(weights, x), expected)
    if name not in RECURRENT:
        sums = {key: each.sum(0) for key, each in by_sample(weights, x).items()}
        torch.testing.assert_close(sums, expected)
