"""The contract of encodings, of compositions: chosen ones, and random ones with nested parts."""

import pytest
from hypothesis import given, settings
from strategies import built, compositions

from floater.testing import check_contract

CHECKS = (
    "padding",
    "packing",
    "packing_causal",
    "cache",
    "prefix",
    "shift",
    "shift_causal",
    "permutation",
    "gradients",
    "gradients_causal",
)

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
    ["rotary", {"name": "floater_cde", "std": 0.3}, "shaw"],
]


@pytest.mark.parametrize("models", CHOSEN, ids=str)
@pytest.mark.parametrize("check", CHECKS)
def test_chosen_compositions(models, check):
    check_contract("compose", check, {"models": models})


@settings(max_examples=12, derandomize=True)
@given(compositions())
def test_random_compositions(encoding):
    name, options = encoding
    for check in CHECKS:
        if built(encoding, causal="causal" in check or check in ("cache", "prefix")) is not None:
            check_contract(name, check, options)
