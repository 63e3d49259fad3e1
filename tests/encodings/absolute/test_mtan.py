"""mTAN's attention by time against its equation."""

import math

import pytest
import torch

from floater import Positions, build
from floater.encodings import AttentionContext

SIZES = {"dim": 8, "heads": 2, "layers": 3, "max_length": 16}


@pytest.mark.parametrize("content", [False, True])
@torch.no_grad()
def test_logits_are_products_of_features_of_the_times(content):
    torch.manual_seed(0)
    model = build("mtan", **SIZES, width=6, content=content).double()
    for parameter in model.parameters():
        parameter.normal_()
    times = torch.tensor([[0.0, 0.5, 3.25, 7.0], [1.0, 1.5, 2.0, 90.75]], dtype=torch.double)
    actual = model.bias(
        torch.zeros(2, 2, 4, 4), None, AttentionContext(model.prepare(Positions.times(times)), 2)
    )

    def features(t, which):
        angles = [t / 16 * w + a for w, a in zip(model.frequency[2], model.phase[2], strict=True)]
        phi = torch.stack([angles[0], *(angle.sin() for angle in angles[1:])])
        return model.weight[2, which] @ phi + model.feature_bias[2, which]

    for b in range(2):
        for t in range(4):
            for s in range(4):
                q, k = features(times[b, t], 0).view(2, 3), features(times[b, s], 1).view(2, 3)
                torch.testing.assert_close(actual[b, :, t, s], (q * k).sum(-1) / math.sqrt(3))
    assert model.scale(4) == (0.5 if content else 0.0)
