"""Run encodings on the second device and print as JSON how they end: read-backs, or the error.

python tests/devices/read_backs.py            # every encoding, by its default options
python tests/devices/read_backs.py alibi t5
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from second_device import SecondDevice, captured, counted, move, to_second
from torch import Tensor

from floater.encodings import PositionModel, catalogue
from floater.flow import FlowEncoder
from floater.positions import Positions
from floater.testing.case import Case
from floater.testing.inputs import mask_positions, with_fields

PADDED = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])


def counted_positions(model: Any) -> Positions:
    """Return positions 0 to 6 of three samples, which no mask was read for."""
    return _with_all_fields(model, Positions.arange(PADDED.shape[1]), torch.ones_like(PADDED))


def padded_positions(model: Any) -> Positions:
    """Return the positions of a padded batch."""
    return _with_all_fields(model, Positions.from_mask(PADDED), PADDED)


def _with_all_fields(model: Any, positions: Positions, mask: Tensor) -> Positions:
    """Return the positions with the fields that an encoding may read, and what is known of them."""
    filled = with_fields(positions, torch.arange(len(PADDED)), mask_positions(model, mask).structure)
    names = ("target_length", "language", "reordered", "token", "segment", "structure")
    return positions.but(**{name: getattr(filled, name) for name in names})


def run(name: str, positions_of: Callable[[Any], Positions]) -> dict[str, Any]:
    """Run two blocks forward and backward on both devices, and compare them.

    Returns:
        What was read back in the forward pass and in the backward pass of a third step.

    Raises:
        AssertionError: if the results differ.
    """
    case = Case(name)
    here, there = case.stack().train(), case.stack().train()
    positions = positions_of(here.position)
    x = torch.randn(*PADDED.shape, 16, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    expected = step(here, x, positions)
    move(there)
    with SecondDevice():
        remote = positions._map(to_second)
        if any(isinstance(part, FlowEncoder) for part in there.modules()):
            for _ in range(2):  # the first step selects a mesh, the second counts its iterations
                step(there, to_second(x), remote)
                there.zero_grad()
        torch.manual_seed(3)
        with counted() as reads:
            out = there(to_second(x), remote)
            forward = dict(reads)
            reads.clear()
            (out * out).sum().backward()
            backward = dict(reads)
    results = [out.detach(), *(p.grad for p in there.parameters())]
    for ours, theirs in zip(results, expected, strict=True):
        assert (ours is None) == (theirs is None), "a parameter without gradient on one device"
        if ours is not None:
            torch.testing.assert_close(ours.inner, theirs, rtol=1e-6, atol=1e-8)
    return {"forward": forward, "backward": backward}


def step(stack: Any, x: Tensor, positions: Positions) -> list[Tensor | None]:
    """Run a training step, and return the output and the gradients of all parameters."""
    torch.manual_seed(3)
    out = stack(x, positions)
    (out * out).sum().backward()
    return [out.detach(), *(p.grad for p in stack.parameters())]


def uncaptured(name: str) -> dict[str, int]:
    """Count what a CUDA graph could not capture in a forward pass, after a first one, of baked blocks.

    What is read back includes every operation whose result has a shape that depends on values.
    """
    stack = Case(name).stack()
    if any(isinstance(part, FlowEncoder) for part in stack.modules()):
        for part in [part for part in stack.modules() if isinstance(part, PositionModel)]:
            part.bake(8)
    x = torch.randn(*PADDED.shape, 16, dtype=torch.double)
    positions = counted_positions(stack.position)
    move(stack)
    with SecondDevice(), torch.no_grad():
        x, positions = to_second(x), positions._map(to_second)
        stack(x, positions)
        with captured() as unsafe:
            stack(x, positions)
    return dict(unsafe)


def main(names: list[str]) -> None:
    results: dict[str, Any] = {}
    for name in names or catalogue():
        results[name] = {}
        kinds = {
            "counted": partial(run, name, counted_positions),
            "padded": partial(run, name, padded_positions),
            "baked": partial(uncaptured, name),
        }
        for kind, end in kinds.items():
            try:
                results[name][kind] = end()
            except Exception as error:  # the test reports it
                line = traceback.extract_tb(error.__traceback__)[-1]
                message = f"{type(error).__name__}: {error} ({line.filename}:{line.lineno})"
                results[name][kind] = {"error": message}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
