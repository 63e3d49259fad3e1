"""Sinusoids whose frequencies are learned (Wang et al. 2021)."""

import torch

from floater import Positions, build

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
