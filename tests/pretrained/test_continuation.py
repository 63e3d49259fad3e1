"""Continuation of tables of position vectors: by a fitted flow, and by methods without one."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from checkpoints import checkpoint
from floater.pretrained.extending.continuation import continue_grid, continue_table, fit_flow


def waves(length: int, dim: int = 12) -> Tensor:
    """A table that a flow of three frequencies draws."""
    generator = torch.Generator().manual_seed(0)
    phase = torch.rand(3, dim, generator=generator) * 2 * math.pi
    size = torch.rand(3, dim, generator=generator) + 0.5
    speed = torch.tensor([0.11, 0.37, 1.3])[:, None]
    times = torch.arange(length)[:, None, None]
    return (size * torch.sin(speed * times + phase)).sum(1) + 0.3


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_table_of_waves_goes_on_as_waves(noise: float) -> None:
    """The flow finds frequencies and amplitudes; special vectors at both ends are not used, nor changed."""
    truth = waves(300)
    table = truth[:150] + noise * torch.randn(150, 12, generator=torch.Generator().manual_seed(1))
    table[0], table[-1] = 7.0, -5.0
    actual = continue_table(table, 300, "flow")
    assert torch.equal(actual[:150], table)
    error = (actual[150:] - truth[150:]).square().mean().sqrt()
    assert error < 0.02 + 4 * noise
    for name in ("repeat", "hierarchical"):
        other = continue_table(table, 300, name)
        assert torch.equal(other[:150], table)
        assert (other[150:] - truth[150:]).square().mean().sqrt() > 0.5


def test_a_flow_stays_as_large_as_the_table() -> None:
    """Growth in the table is not extrapolated without bound: noise and trends turn."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(100, 32, generator=generator).cumsum(0) * 0.1
    far = fit_flow(table)(torch.arange(5000.0, dtype=torch.float64))
    assert far.abs().max() < 10 * table.abs().max()


def test_constant_tables_stay_constant() -> None:
    assert torch.allclose(continue_table(torch.ones(10, 3), 30, "flow"), torch.ones(30, 3))


def test_a_fit_does_not_depend_on_the_memory_that_it_gets() -> None:
    table = torch.randn(62, 32)
    first = continue_table(table, 256, "flow")
    for size in range(1, 21):
        junk = [torch.randint(-9, 9, (size * count,)) for count in range(1, 33)]
        del junk
        assert torch.equal(continue_table(table, 256, "flow"), first)


def test_hierarchical_positions() -> None:
    """alpha u_i + (1 - alpha) u_j at i n + j, by Su's formula, entry by entry."""
    table = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u = [(row - 0.4 * table[0]) / 0.6 for row in table]
    actual = continue_table(table, 25, "hierarchical", special=(0, 0))
    for i in range(5):
        for j in range(5):
            torch.testing.assert_close(actual[5 * i + j], 0.4 * u[i] + 0.6 * u[j])
    with pytest.raises(ValueError, match="reaches 25 positions"):
        continue_table(table, 26, "hierarchical", special=(0, 0))


def test_interpolation_keeps_both_ends() -> None:
    line = torch.arange(4.0)[:, None]
    actual = continue_table(line, 7, "interpolation", special=(0, 0))
    torch.testing.assert_close(actual[:, 0], torch.arange(7.0) / 2)


def test_a_grid_goes_on_to_the_right_and_below() -> None:
    """A plane wave, which is a flow along both axes."""
    down, right = torch.arange(24.0)[:, None], torch.arange(30.0)
    truth = torch.stack([torch.sin(0.5 * down + 0.9 * right + k) for k in range(4)], -1)
    old = truth[:16, :20].reshape(-1, 4)
    actual = continue_grid(old, (16, 20), (24, 30), "flow").view(24, 30, 4)
    assert torch.equal(actual[:16, :20].reshape(-1, 4), old)
    torch.testing.assert_close(actual, truth, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("trained", "whole"), [(128, 256), (256, 512)])
def test_the_flow_foresees_a_trained_table_better_than_baselines(trained: int, whole: int) -> None:
    """The begin of MiniLM's table, continued, against its end, which nothing has seen."""
    with safe_open(checkpoint("minilm") / "model.safetensors", "pt") as file:
        name = next(name for name in file.keys() if "position_embeddings" in name)  # noqa: SIM118
        table = file.get_tensor(name).float()

    def error(method: str) -> float:
        actual = continue_table(table[:trained], whole, method)[trained : whole - 1]
        return float((actual - table[trained : whole - 1]).norm())

    assert error("flow") < 0.9 * min(error("repeat"), error("interpolation"), error("hierarchical"))
