"""The contract of encodings, of compositions: chosen ones, and random ones with nested parts."""

import pytest
from hypothesis import given, settings
from properties import PROPERTIES
from strategies import built, compositions

# every rotation, every encoding that reads queries or keys, flat and nested
CHOSEN = [
    ["rotary", "shaw"],
    ["xpos", "transformer_xl"],
    ["liere", {"name": "deberta", "absolute": False}],
    ["mrope", "chang"],
    ["rotary_mixed", "huang3"],
    ["rotary_axial", "huang4"],
    ["floater_rotary", "tener"],
    ["rotary", "rr_transformer"],
    ["rotary", "path"],
    ["forgetting", "rotary", "cope"],
    ["rotary", "xpos", {"name": "chang", "keys": True}],
    [{"name": "compose", "models": ["shaw", "alibi"]}, {"name": "floater_rotary", "basis": "learned"}],
    [{"name": "mix", "model": "rotary", "other": "window", "every": 2}, "transformer_xl"],
    [
        {"name": "compose", "models": [{"name": "mix", "model": "cope", "other": "rotary", "every": 2}]},
        "xpos",
    ],
    ["bipe", {"name": "compose", "models": ["deberta", "rotary"]}],
    ["rotary", "complex_attention", "shaw"],
    ["floater_tree", {"name": "compose", "models": ["rotary", "structural"]}],
    [{"name": "dape", "model": "floater_tree"}, "rotary"],
]


@pytest.mark.parametrize("models", CHOSEN, ids=str)
@pytest.mark.parametrize("name", PROPERTIES)
def test_chosen_compositions(models, name):
    PROPERTIES[name]("compose", {"models": models})


@settings(max_examples=12, derandomize=True, deadline=None)
@given(compositions())
def test_random_compositions(encoding):
    for name, holds in PROPERTIES.items():
        if built(encoding, causal="causal" in name or name in ("cache", "prefix")) is not None:
            holds(*encoding)
