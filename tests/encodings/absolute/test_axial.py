"""Axial positions against Hugging Face's Reformer and the survey's equation."""

import pytest
import torch
from torch.nn.utils import parametrize

from floater import PositionError, Positions, build

SIZES = {"heads": 2, "layers": 1, "max_length": 12}


def model(**options):
    torch.manual_seed(0)
    return build("axial", dim=6, **(SIZES | options), segment=4).double()


def test_a_parametrized_table_is_read():
    built = model()
    parametrize.register_parametrization(built, "places", torch.nn.Tanh())
    plain = model()
    with torch.no_grad():
        plain.places.tanh_()
    assert torch.equal(built.prepare(Positions.arange(12)), plain.prepare(Positions.arange(12)))


@pytest.mark.parametrize("first", [2, 3])
def test_the_released_order_is_hugging_faces(first):
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    from transformers import ReformerConfig

    built = model(first=first)
    config = ReformerConfig(
        hidden_size=6, axial_pos_shape=(3, 4), axial_pos_embds_dim=(first, 6 - first), hidden_dropout_prob=0.0
    )
    other = reformer.AxialPositionEmbeddings(config).double()
    with torch.no_grad():
        other.weights[0].copy_(built.segments.view(3, 1, -1))
        other.weights[1].copy_(built.places.view(1, 4, -1))
    x = torch.randn(2, 12, 6, dtype=torch.double)
    actual = built.embed(x, built.prepare(Positions.arange(12)))
    torch.testing.assert_close(actual, x + other(torch.arange(12)[None]))


def test_the_surveys_order_is_equation_5():
    built = model(first=2, order="survey")
    positions_ = [0, 1, 3, 4, 7, 11]
    state = built.prepare(Positions(torch.tensor([positions_]), torch.tensor([positions_])))
    for vector, t in zip(state[0], positions_, strict=True):
        expected = [built.places[t % 4, j] if j < 2 else built.segments[t // 4, j - 2] for j in range(6)]
        assert vector.tolist() == [value.item() for value in expected]


def test_a_last_segment_need_not_be_full():
    assert model(max_length=9).segments.shape == (3, 3)
    with pytest.raises(PositionError, match="'axial' ends at position 8; position 9 was requested"):
        model(max_length=9).prepare(Positions.arange(10))
