"""What all tasks do around a model that is measured."""

import pytest
import torch
from torch import nn

from floater.encodings import PositionError
from floater.flow import FlowEncoder, ZeroField
from floater.tasks.run import evaluating


@pytest.mark.parametrize("baked", [False, True])
def test_a_model_that_refuses_an_example_goes_on_in_the_mode_it_was_in(baked: bool) -> None:
    flow = FlowEncoder(ZeroField(), 2, blocks=[0], names=["q"])
    model = nn.ModuleList([nn.Dropout(), flow])

    def measure() -> None:
        with evaluating(model, baked=baked):
            assert not model[0].training
            assert not torch.is_grad_enabled()
            raise PositionError("it ends here")

    with pytest.raises(PositionError, match="it ends here"):
        measure()
    assert model[0].training
    assert flow(torch.tensor([[0, 1]])).at(0, "q").requires_grad
