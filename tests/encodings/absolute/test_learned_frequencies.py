"""Sinusoids whose frequencies are learned (Wang et al. 2021)."""

import math

import pytest
import torch

from floater import Positions, build
from floater.transformer import FloaterModel
from small_models import small_config

SIZES = {"dim": 16, "heads": 2, "layers": 2, "max_length": 12}


def test_they_start_as_the_fixed_ones_and_every_frequency_learns() -> None:
    fixed, learned = (build("sinusoidal", **SIZES, frequencies=kind) for kind in ("fixed", "learned"))
    x, positions = torch.randn(1, 9, 16), Positions.arange(9)
    out = learned.embed(x, learned.prepare(positions))
    assert torch.equal(out, fixed.embed(x, fixed.prepare(positions)))
    assert [tuple(weight.shape) for weight in learned.parameters()] == [(8,)]
    out.square().sum().backward()
    assert bool((learned.factors.grad != 0).all())


def test_a_factor_changes_the_wave_length_of_its_pair_alone() -> None:
    fixed, learned = (
        build("sinusoidal", **SIZES, frequencies=kind).double() for kind in ("fixed", "learned")
    )
    with torch.no_grad():
        learned.factors[3] = torch.tensor(0.5).log()  # half the frequency
    x = torch.zeros(1, 1, 16, dtype=torch.float64)

    def at(model: torch.nn.Module, position: int) -> torch.Tensor:
        return model.embed(x, model.prepare(Positions(*2 * [torch.tensor([[position]])])))[0, 0]

    ours, theirs, half = at(learned, 10), at(fixed, 10), at(fixed, 5)
    pair = torch.arange(16) // 2 == 3
    assert torch.allclose(ours[pair], half[pair], atol=1e-7)
    assert torch.equal(ours[~pair], theirs[~pair])


@pytest.mark.parametrize(
    ("name", "options", "parameter"),
    [
        ("sinusoidal", {"frequencies": "learned"}, "factors"),
        ("shaw", {"vectors": "frequencies"}, "factors"),
        ("complex", {}, "frequency"),
        ("complex_attention", {}, "frequency"),
    ],
)
def test_a_cast_rounds_no_frequency(name, options, parameter, tmp_path) -> None:
    model = FloaterModel(small_config(name, position_options=options))
    with torch.no_grad():
        expected = getattr(model.encoder.position, parameter)
        expected = (expected.normal_(std=0.1) if parameter == "factors" else expected).clone()
    model.save_pretrained(tmp_path)
    for cast in (
        model.bfloat16(),
        model.half(),
        FloaterModel.from_pretrained(tmp_path, dtype=torch.bfloat16),
    ):
        assert cast.embedding.weight.dtype != torch.float32
        assert torch.equal(getattr(cast.encoder.position, parameter), expected)
        assert bool(cast(torch.arange(5)[None]).last_hidden_state.isfinite().all())
    assert getattr(model.double().encoder.position, parameter).dtype == torch.float64
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert getattr(build(name, **SIZES, **options), parameter).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_phase_of_a_cast_model_is_right_at_far_positions() -> None:
    model = build("sinusoidal", **SIZES, frequencies="learned")
    torch.nn.init.constant_(model.factors, 0.3)
    half, far = model.bfloat16(), Positions(*2 * [torch.tensor([[1000]])])
    phase = 1000 * math.exp(torch.tensor(0.3).item())
    actual = half.embed(torch.zeros(1, 1, 16).bfloat16(), half.prepare(far))[0, 0, :2].tolist()
    assert actual == pytest.approx([math.sin(phase), math.cos(phase)], abs=0.01)


def test_a_cast_rounds_what_no_position_multiplies() -> None:
    maps = build("sinusoidal", **SIZES, site="cross", injection="cross", frequencies="learned").bfloat16()
    kept = {name: parameter.dtype for name, parameter in maps.named_parameters()}
    assert kept == {"factors": torch.float32, "maps.0": torch.bfloat16, "maps.1": torch.bfloat16}
    assert build("shaw", **SIZES).bfloat16().keys.dtype == torch.bfloat16
