"""Run whole models on the second device and print as JSON how they end: read-backs, or the error.

python tests/devices/whole_models.py            # heads, plugged and extended families
python tests/devices/whole_models.py FloaterForCausalLM "plug bert"
"""

from __future__ import annotations

import copy
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from second_device import DEVICE, SecondDevice, captured, counted, move, to_second
from subjects import BAKED, IDS, MASK, baked, subjects
from torch import Tensor, nn

from floater.flow import FlowEncoder
from floater.pretrained.extending import biases


def step(model: Any, inputs: dict[str, Any]) -> tuple[list[Tensor | None], dict[str, int], dict[str, int]]:
    """Run a training step; return the outputs and gradients, and what was read in its two passes."""
    torch.manual_seed(3)
    with counted() as reads:
        outputs = [x for x in model(**inputs).values() if isinstance(x, Tensor) and x.requires_grad]
        forward = dict(reads)
        reads.clear()
        torch.stack([x.square().sum() for x in outputs]).sum().backward()
        backward = dict(reads)
    return [*(x.detach() for x in outputs), *(p.grad for p in model.parameters())], forward, backward


def run(build: Callable[[], nn.Module], inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Compare a training step with the CPU's.

    Raises:
        AssertionError: if results or gradients differ.
    """
    here = build().eval()
    there, other = move(copy.deepcopy(here)), move(copy.deepcopy(here))
    expected, _, _ = step(here, inputs)
    remote = {name: to_second(x) for name, x in inputs.items()}
    with SecondDevice(), DEVICE:  # tensors without a device are made there, and caches are filled
        by_default, _, _ = step(other, remote)
    with SecondDevice():
        if any(isinstance(part, FlowEncoder) for part in there.modules()):
            for _ in range(2):  # the first step selects a mesh, the second counts its iterations
                step(there, remote)
                there.zero_grad()
        results, forward, backward = step(there, remote)
    largest = max(float(x.abs().max()) for x in expected if x is not None)
    for theirs, mine in zip([*by_default, *results], [*expected, *expected], strict=True):
        assert (mine is None) == (theirs is None), "a parameter without gradient on one device"
        if mine is not None:
            # more intervals are iterated together there: vectors differ within the solver's tolerance
            torch.testing.assert_close(theirs.inner, mine, rtol=1e-4, atol=1e-5 * largest)
    return {"forward": forward, "backward": backward}


def uncaptured(model: Any, mask: Tensor | None) -> list[dict[str, int]]:
    """Count what a CUDA graph could not capture in a forward pass, and in that of a token from its cache."""
    ids, options = to_second(IDS), {} if mask is None else {"attention_mask": to_second(mask)}
    with SecondDevice(), torch.no_grad():
        model(ids, **options)
        with captured() as forward:
            model(ids, **options)
        if not hasattr(model, "generate") or not model.can_generate():
            return [forward]
        before = {name: each[:, :-1] for name, each in options.items()}
        cache = model(ids[:, :-1], use_cache=True, **before).past_key_values
        with captured() as token:
            model(ids[:, -1:], past_key_values=cache, **options)
    return [forward, token]


def main(names: list[str]) -> None:
    biases.STEPS, biases.POINTS = 1, 20  # a fit need not be close
    results: dict[str, Any] = {}
    if not names:
        for name in BAKED:
            model = move(baked(name))
            results[f"captured {name}"] = [uncaptured(model, mask) for mask in (None, MASK)]
    for name, (build, inputs) in subjects().items():
        if not names or name in names:
            try:
                results[name] = run(build, inputs)
            except Exception as error:  # the test reports it
                lines = traceback.extract_tb(error.__traceback__)
                line = next((x for x in reversed(lines) if "site-packages" not in x.filename), lines[-1])
                message = f"{type(error).__name__}: {error} ({line.filename}:{line.lineno})"
                results[name] = {"error": message}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
