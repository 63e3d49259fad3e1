"""The public contract finds encodings that break it; its blocks in torch compute what the Transformer has."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
import torch
from torch import Tensor, nn

from floater import PositionError, PositionModel, Positions, catalogue
from floater.encodings import Card, StackSpec, registry
from floater.testing import CHECKS, Case, check_contract, check_refusal
from floater.testing.inputs import MASK, embeddings, mask_positions

SINE = Card(paper="a test", link="", point="absolute", equation="x_t + a sin(t)", parameters="d")


class Sine(PositionModel):
    """x_t + a sin(t), with one learned a per component: an encoding that keeps the contract."""

    card = SINE

    def __init__(self, spec: StackSpec, *, rate: float = 1.0) -> None:
        super().__init__(spec)
        self.rate = rate
        self.amplitude = nn.Parameter(torch.empty(spec.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.amplitude)

    def prepare(self, positions: Positions) -> Tensor:
        dtype = torch.promote_types(positions.query.dtype, torch.float)
        return (self.rate * positions.query.to(dtype)).sin()[..., None]

    def embed(self, x: Tensor, state: Any) -> Tensor:
        return x + (self.amplitude * state).to(x.dtype)


class Columns(Sine):
    """Counts columns, padding included."""

    def prepare(self, positions: Positions) -> Tensor:
        columns = torch.arange(positions.query.shape[1])[None].expand_as(positions.query)
        return super().prepare(positions.but(query=columns))


class Ahead(Sine):
    """Shows each token the mean of all."""

    def embed(self, x: Tensor, state: Any) -> Tensor:
        return super().embed(x + x.mean(1, keepdim=True), state)


class Detached(Sine):
    """Cuts the gradient of its parameter."""

    def embed(self, x: Tensor, state: Any) -> Tensor:
        return x + (self.amplitude.detach() * state).to(x.dtype)


class Kept(Sine):
    """Draws no parameter anew."""

    def reset_parameters(self) -> None:
        if not hasattr(self, "drawn"):
            nn.init.ones_(self.amplitude)
            self.drawn = True


class Rounding(Sine):
    """Computes its angles in the precision of the embeddings."""

    def prepare(self, positions: Positions) -> Tensor:
        query = positions.query
        rate = query.new_full((1, 1), self.rate, dtype=torch.float)
        return (query[..., None].float() @ rate).sin()


class Endless(Sine):
    """Says that it ends at max_length, and does not."""

    bounded = True


class Relative(Sine):
    """Says that it is relative."""

    card = replace(SINE, point="relative")


class NoParameters(Sine):
    """Says that it has no parameters."""

    card = replace(SINE, parameters="0")


class Excepting(Sine):
    """Excepts what it keeps."""

    card = replace(SINE, exceptions={"compile": "it could not be compiled once", "causal": "unknown reason"})


class NoPositions(Sine):
    """Says that positions act, and adds nothing."""

    def embed(self, x: Tensor, state: Any) -> Tensor:
        return x + 0.0 * self.amplitude.to(x.dtype)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Enter a class in the catalogue for one test."""
    monkeypatch.setattr(registry, "_CATALOGUE", dict(registry._CATALOGUE))
    registry.register("broken")(request.param)
    return "broken"


@pytest.mark.parametrize("registered", [Sine], indirect=True)
@pytest.mark.parametrize("check", CHECKS)
def test_an_encoding_from_elsewhere_keeps_the_contract(registered: str, check: str) -> None:
    check_contract(registered, check, {"rate": 0.5})


@pytest.mark.parametrize(
    ("registered", "checks"),
    [
        (Columns, ["padding", "packing", "cache", "real"]),
        (Ahead, ["padding", "packing_causal", "cache", "prefix", "causal"]),
        (Detached, ["parameters"]),
        (Kept, ["reset"]),
        (Rounding, ["autocast"]),
        (Endless, ["bound"]),
        (Relative, ["shift", "shift_causal"]),
        (NoParameters, ["card"]),
        (Excepting, ["causal", "compile"]),
        (NoPositions, ["order", "real"]),
    ],
    indirect=["registered"],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_check_finds_an_encoding_that_breaks_it(registered: str, checks: list[str]) -> None:
    for check in checks:
        with pytest.raises(AssertionError):
            check_contract(registered, check, blocks="torch")


@pytest.mark.parametrize("name", catalogue())
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_blocks_in_torch_compute_what_the_reference_transformer_does(name: str, causal: bool) -> None:
    pytest.importorskip("transformers")
    x, outputs = embeddings(*MASK.shape), []
    for case in (Case(name, blocks="torch"), Case(name, blocks="transformer")):
        stack = case.stack(causal=causal)
        outputs.append(stack(x, mask_positions(stack.position, MASK))[MASK.bool()])
    torch.testing.assert_close(*outputs)


def test_a_check_that_needs_the_transformer_is_skipped_without() -> None:
    for check in ("decoder", "kernels"):
        with pytest.raises(SkipTest, match=r"pip install .*\[hf\]"):
            check_contract("alibi", check, blocks="torch")


def test_a_check_leaves_the_random_state() -> None:
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    check_contract("alibi", "gradients", blocks="torch")
    assert torch.equal(torch.get_rng_state(), expected)


def test_the_reference_lists_every_check() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "testing.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{name}` | {(check.__doc__ or '').splitlines()[0]} |" for name, check in CHECKS.items()
    ]


def test_an_unknown_check_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ValueError, match=r"unknown check 'paddings'; there are: autocast, .*padding"):
        check_contract("alibi", "paddings")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": 500.0}, "not refused; expected a PositionError that matches 'base is'"),
        ({"pairs": "none"}, "refused by \"pairs is 'none'.*, which does not match 'base is'"),
    ],
)
def test_a_refusal_that_is_missing_or_another_fails(options: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_refusal("rotary", options, "base is")


@pytest.mark.parametrize("registered", [Sine], indirect=True)
def test_a_refusal_of_several_lines_fails(registered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: Sine, positions: Positions) -> Tensor:
        raise PositionError("no positions\nat all")

    monkeypatch.setattr(Sine, "prepare", prepare)
    with pytest.raises(AssertionError, match="several lines"):
        check_refusal(registered, {}, "no positions", Positions.arange(2))
