"""Every position model, with options that have code of their own, and what the tests of the contract read."""

import dataclasses

import pytest
import torch

from floater import Positions, catalogue
from floater.structures import trees
from floater.transformer.stacks import Encoder
from small_models import small_config

LENGTH = 16
# options that have code of their own
VARIANTS = [
    ("axial", {"segment": 3}),
    ("cape", {"normalize": False}),
    ("chang", {"window": 2, "keys": True}),
    ("chen_absolute", {"segments": 2}),
    ("chen_relative", {"segments": 2, "share_heads": True}),
    ("complex", {"periods": "word"}),
    ("complex", {"periods": "both"}),
    ("complex_attention", {"periods": "both"}),
    ("deberta", {"share": True, "norm": True}),
    ("floater_relative", {"tail": True}),
    ("floater_relative", {"normalise": True}),
    ("floater_relative", {"solver": "dopri5"}),
    ("floater", {"field": "bounded", "uncovered": "cut"}),
    ("floater_rotary", {"basis": "learned", "pairs": "half"}),
    ("rotary", {"scaling": {"rope_type": "yarn", "factor": 2.0}}),
    ("rotary", {"uncovered": "cut"}),
    ("sinusoidal", {"uncovered": "round"}),
    ("self_extend", {"form": "leaky", "window": 2, "group": 3}),
    ("self_extend", {"form": "floor", "window": 2, "group": 3}),
    ("stick_breaking", {"attend_current": True}),
    ("fope", {"learned": True}),
    ("dape", {"model": "fire"}),
    ("abacus", {"digits": [3, 6, 9, 1]}),
    ("bipe", {"delimiters": [4, 9]}),
    ("bipe", {"delimiters": [4, 9], "between": "alibi"}),
    ("mtan", {"content": True, "width": 6}),
    ("graphormer", {"hops": 2, "reach": 2, "degrees": 2}),
    ("mrope", {"interleaved": True, "pairs": "interleaved"}),
    ("liere", {"generator": 4}),
    ("fire", {"width": 6, "threshold": 3.0}),
    ("fire", {"share_layers": True}),
    ("kerple", {"kind": "power"}),
    ("kerple", {"share_layers": False}),
    ("spe_conv", {"kernel": 4, "gated": False}),
    ("structural", {"encoder": "cnn"}),
    ("tree", {"branching": 4, "depth": 2, "weighted": False}),
    ("xl", {"join": "learned"}),
    ("xl_heads", {"reordered": 2}),
]
EVERY = pytest.mark.parametrize(
    ("name", "given"),
    [pytest.param(name, {}, id=name) for name in catalogue()]
    + [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in VARIANTS],
)
MASK = torch.tensor(
    [[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 0, 1], [0] * 6 + [1]]
)


def config(name, given, **changes):
    # one recipe for all, so that one threshold tells what an encoding does
    changes = {"training_length": LENGTH, "recipe": "transformer"} | changes
    return small_config(name, position_options=given, **changes)


def stir(position):
    """Randomise parameters that start at zero, which would hide a mistake."""
    torch.manual_seed(1)
    for parameter in position.parameters():
        if not bool(parameter.any()):
            torch.nn.init.normal_(parameter, std=0.5)


def stack(name, given, causal=False):
    torch.manual_seed(0)
    encoder = Encoder(config(name, given), causal=causal).double().eval()
    stir(encoder.position)
    return encoder


def embeddings(*shape):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(*shape, 16, generator=generator, dtype=torch.double)


def where(model, mask, rows=None, queries=None, nodes=None):
    """Positions of a mask with all that a model may read: it follows from the row and the position alone.

    The model is an encoding or its name; `nodes` are those of each sample's tree, by default its tokens.
    """
    model = catalogue()[model] if isinstance(model, str) else model
    rows = torch.arange(len(mask)) if rows is None else rows
    positions = Positions.from_mask(mask, queries=queries)
    query = positions.query.expand(len(mask), -1)
    binary = None
    if hasattr(model, "needs"):
        nodes = [max(int(row.sum()), 1) if nodes is None else nodes for row in mask]
        binary = trees(
            [[(i - 1) // 2 if i else -1 for i in range(n)] for n in nodes],
            words=[torch.where(row > 0, row.cumsum(0) - 1, -1) for row in mask],
        )
    return dataclasses.replace(
        positions,
        target_length=9 + rows,
        language=(query + rows[:, None]) % 2,
        reordered=(5 * query + rows[:, None]) % 7,
        structure=binary,
        **of_tokens(positions, query, rows),
    )


def of_tokens(positions, query, rows):
    """Ids of tokens and of segments, by their positions."""
    return {
        "token": (3 * query + rows[:, None]) % 11,
        "segment": (positions.key.expand(len(rows), -1) + rows[:, None]) % 2,
    }
