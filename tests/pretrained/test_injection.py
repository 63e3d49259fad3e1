"""Every bias reaches its projection: plugged models against their attention written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import floater

from . import equations, zoo


def site_positions(name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the positions of each site's tokens, by counting."""
    if name in zoo.IMAGES:
        return {"tokens": torch.arange(zoo.IMAGES[name])[None]}
    if name == "whisper":
        return {
            "encoder": torch.arange(6)[None],
            "cross": torch.arange(6)[None],
            "decoder": torch.arange(5)[None],
        }
    rows = []
    for row in inputs["attention_mask"].tolist():
        count, row_numbers = 0, []
        for valid in row:
            row_numbers.append(count)
            count += valid
        rows.append([min(i, count - 1) for i in row_numbers])
    padded = torch.tensor(rows)
    if name not in zoo.SEQ2SEQ:
        return {"tokens": padded}
    return {"encoder": padded, "cross": padded, "decoder": torch.arange(5)[None]}


def written_out(name: str, flows: Any, options: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The logits of the model that was never plugged, its attention replaced; and how often it ran."""
    where = site_positions(name, options)
    solved = {site: flows(site, positions) for site, positions in where.items()}
    model = zoo.build(name)
    albert = {0: [0, 2], 1: [1, 3], 2: [4, 6], 3: [5, 7]}  # two groups of two layers, four times a group
    standing: list[equations.Written] = []
    counts: dict[str, int] = {}
    for path, module in model.named_modules():
        if type(module).__name__ not in equations.EQUATIONS:
            continue
        site = "tokens" if len(where) == 1 else "decoder" if "decoder." in path else "encoder"
        cross = any(part in path for part in ("crossattention", "encoder_attn", "EncDecAttention"))
        counts[site] = counts.get(site, -1) + (not cross)
        blocks = albert[counts[site]] if name == "albert" else [counts[site]]

        def biases(site: str, block: int, part: str) -> Tensor:
            fields = solved[site].values()
            return next(v.at(block, part) for v in fields if (block, part) in v.keys).detach()

        standing.append(equations.Written(module, site, blocks, cross, biases))
        module.forward = standing[-1]
    logits = zoo.output(model, **options)
    return logits, sum(written.calls for written in standing)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_every_bias_is_where_the_equations_have_it(name: str) -> None:
    options = {**zoo.inputs(name), "use_cache": False} if name in zoo.DECODERS else zoo.inputs(name)
    model = zoo.build(name)
    plain = zoo.output(model, **options)
    floater.plug(model)
    zoo.noisy(model)
    logits = zoo.output(model, **options)
    with torch.no_grad():
        expected, calls = written_out(name, model.floater, options)
    uses = {"albert": 8, "bart": 8, "marian": 8, "whisper": 8, "t5": 6, "bert2bert": 6}
    assert calls == uses.get(name, 2)
    assert (logits - plain).abs().max() > 1e-2  # the biases matter
    # a few operations in another order: float32 rounds at 1e-7 of logits of order one
    torch.testing.assert_close(logits, expected, atol=5e-6, rtol=1e-5)
    floater.bake(model, 16)
    torch.testing.assert_close(zoo.output(model, **options), expected, atol=5e-6, rtol=1e-5)
