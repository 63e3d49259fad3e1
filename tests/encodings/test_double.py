"""Encodings in float64 models: whole positions are as exact as real ones."""

import numpy as np
import pytest
import torch

from floater import Positions, build, catalogue
from floater.encodings import AttentionContext
from floater.transformer import FloaterModel
from floater.transformer.stacks import Encoder
from small_models import small_config

AT = torch.tensor([[0, 1, 2, 3, 5, 8, 13, 21, 30]])
REAL = [
    name
    for name, model in catalogue().items()
    if "real" not in model.card.exceptions and not hasattr(model, "needs")
]


def closed_form(at: torch.Tensor, dim: int) -> torch.Tensor:
    rate = 10000.0 ** -(np.arange(0, dim, 2) / dim)
    angle = at.numpy().astype(np.float64)[..., None] * rate
    return torch.from_numpy(np.stack([np.sin(angle), np.cos(angle)], -1).reshape(*at.shape, dim))


@pytest.mark.parametrize(
    "cast", [lambda model: model.double(), lambda model: model.float().to(torch.float64)]
)
def test_universal_is_exact_in_float64_and_unchanged_in_float32(cast):
    model = build("universal", dim=16, heads=2, layers=2, max_length=32)
    x = torch.zeros(1, AT.shape[1], 16)
    added = [model.block(x, model.prepare(Positions(AT, AT)), 1)]
    number = closed_form(torch.tensor([2]), 16)
    assert torch.equal(added[0][0], closed_form(AT[0], 16).float() + number.float())
    cast(model)
    exact = model.block(x.double(), model.prepare(Positions(AT, AT)), 1)[0]
    torch.testing.assert_close(exact, closed_form(AT[0], 16) + number, rtol=0, atol=1e-14)
    model.bfloat16()  # and back: tables are float32 then, as before
    assert model.prepare(Positions(AT, AT)).dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("name", REAL)
def test_whole_positions_and_the_same_as_real_numbers_are_one(name):
    plain = {"plain": True} if catalogue()[name].length_aware else {}
    torch.manual_seed(0)
    encoder = Encoder(small_config(position=name, position_options=plain, training_length=32)).double().eval()
    for parameter in encoder.position.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, AT.shape[1], encoder.config.hidden_size, dtype=torch.float64)
    whole = Positions(AT, AT, reordered=AT.flip(1), language=torch.zeros_like(AT), token=torch.zeros_like(AT))
    real = whole.but(query=AT.double(), key=AT.double(), reordered=AT.flip(1).double())
    torch.testing.assert_close(encoder(x, whole), encoder(x, real), rtol=0, atol=1e-12)


def test_a_loaded_model_is_as_exact_as_a_cast_one(tmp_path):
    model = FloaterModel(small_config(position="sinusoidal", vocab_size=9)).eval()
    model.save_pretrained(tmp_path)
    loaded = FloaterModel.from_pretrained(tmp_path, dtype=torch.float64)
    ids = torch.randint(3, 9, (1, 9))
    with torch.no_grad():
        assert torch.equal(loaded(ids)[0], model.double()(ids)[0])
    assert loaded.encoder.position.dtype == torch.float64


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["alibi", "alibi_grid", "dynamic_bias", "fire", "gaussian", "kerple", "sandwich"]
)
def test_a_bias_of_real_times_is_as_exact_as_the_model_and_no_wider(name):
    at = torch.tensor([[1e9, 1e9 + 0.5, 1e9 + 700.25, 2e9]], dtype=torch.float64)
    model = build(name, dim=24, heads=12, layers=1, max_length=16)
    single = model.bias(None, None, AttentionContext(model.prepare(Positions.times(at)), 0))
    model.double()
    exact = model.bias(None, None, AttentionContext(model.prepare(Positions.times(at)), 0))
    assert (single.dtype, exact.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(single.double(), exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", ["alibi", "gaussian"])
def test_slopes_of_twelve_heads_are_exact_at_whole_positions(name):
    model = build(name, dim=24, heads=12, layers=1, max_length=16).double()
    whole, real = (
        model.correlation(model.prepare(Positions(at, at)), 0) for at in (AT * 999, AT.double() * 999)
    )
    torch.testing.assert_close(whole, real, rtol=1e-15, atol=0)
