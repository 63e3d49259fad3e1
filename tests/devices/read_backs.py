"""Run encodings on the second device and print as JSON how they end: read-backs, or the error.

python tests/devices/read_backs.py            # every encoding, by its default options
python tests/devices/read_backs.py alibi t5
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from cases import PADDED, counted_positions, padded_positions, step
from second_device import DEVICE, SecondDevice, captured, counted, move, to_second

from floater.encodings import PositionModel, catalogue
from floater.flow import FlowEncoder
from floater.positions import Positions
from floater.testing.case import Case


def run(
    name: str,
    positions_of: Callable[[Any], Positions],
    default: AbstractContextManager[Any] | None = None,
) -> dict[str, Any]:
    """Run two blocks forward and backward on both devices, and compare them.

    Args:
        name: The encoding.
        positions_of: Function from the encoding to the positions.
        default: Sets the device of tensors that are made without one, during the run on the second device.

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
    solved = any(isinstance(part, FlowEncoder) for part in there.modules())
    move(there)
    with SecondDevice(), default or nullcontext():
        remote = positions._map(to_second)
        if solved:
            for _ in range(2):  # the first step selects a mesh, the second counts its iterations
                step(there, to_second(x), remote)
                there.zero_grad()
        torch.manual_seed(3)
        with counted() as reads:
            out = there(to_second(x), remote)
            forward = dict(reads)
            reads.clear()
            out.sin().sum().backward()
            backward = dict(reads)
    results = [out.detach(), *(p.grad for p in there.parameters())]
    for ours, theirs in zip(results, expected, strict=True):
        assert (ours is None) == (theirs is None), "a parameter without gradient on one device"
        if ours is not None:
            # more intervals are iterated together there: vectors differ within the solver's tolerance
            torch.testing.assert_close(ours.inner, theirs, rtol=1e-6, atol=1e-6 if solved else 1e-8)
    return {"forward": forward, "backward": backward}


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
            "default": partial(run, name, counted_positions, DEVICE),
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
