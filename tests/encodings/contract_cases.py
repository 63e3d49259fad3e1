"""Every position encoding, by its default options and by options that have code of their own."""

import pytest

from floater import catalogue

# options that choose another path of the code
VARIANTS = [
    ("axial", {"segment": 3}),
    ("cape", {"normalize": False}),
    ("chang", {"window": 2, "keys": True}),
    ("chen_absolute", {"segments": 2}),
    ("chen_relative", {"segments": 2, "share_heads": True}),
    ("clock", {"per": "pair", "rate": "angle", "kernel": 3}),
    ("clock", {"model": "alibi", "per": "block", "rate": "sigmoid", "kernel": 2}),
    ("clock", {"model": {"name": "floater_relative", "tail": True}, "hidden": 3}),
    ("clock", {"model": "fire", "rate": "signed"}),
    ("clock", {"model": {"name": "kerple", "share_layers": False}, "std": 0.1}),
    ("clock", {"model": "dynamic_bias"}),
    ("clock", {"model": {"name": "floater_rotary", "basis": "learned"}, "rate": "angle"}),
    ("clock", {"rate": "signed", "sum": False}),
    ("clock", {"model": {"name": "sinusoidal", "blocks": "all"}, "kernel": 2}),
    ("clock", {"model": "floater"}),
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
    ("name", "options"),
    [pytest.param(name, {}, id=name) for name in catalogue()]
    + [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in VARIANTS],
)
