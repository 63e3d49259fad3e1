"""Errors of each encoding: invalid options in its constructor, and invalid positions in `prepare`."""

import pytest
import torch

from floater import PositionError, Positions, build
from floater.testing import check_refusal

ODD = {"dim": 9, "heads": 3}
OPTIONS = [
    ("floatr", {}, "unknown position model 'floatr'; did you mean 'floater'"),
    ("xyz", {}, "unknown position model 'xyz'; there are: .*floater, "),
    (
        ["t5", "alibi"],
        {},
        r"the position model is \['t5', 'alibi'\]; it must be a name; 'compose' takes several",
    ),
    ("none", {"blocks": "all"}, "unknown option 'blocks' of position model 'none'; it has no options"),
    ("none", {"dim": 8.0}, r"dim is 8\.0; it must be a whole number"),
    ("none", {"heads": "2"}, "heads is '2'; it must be a whole number"),
    ("none", {"layers": None}, "layers is None; it must be a whole number"),
    ("none", {"max_length": float("nan")}, "max_length is nan; it must be a whole number"),
    ("none", {"vocabulary": 0}, "vocabulary is 0; it must be at least 1"),
    (
        "learned",
        {"initializer_range": -1.0},
        r"initializer_range is -1\.0; it must be a finite number, at least",
    ),
    ("learned", {"causal": "no"}, "causal is 'no'; it must be true or false"),
    # absolute
    ("abacus", {"digits": []}, r"digits is \[\]; it must be at least one token id"),
    ("abacus", {"size": 0}, "size is 0; it must be at least 2"),
    ("abacus", {"size": 8, "max_offset": 7}, "max_offset is 7; it must be from 0 to size - 2, 6"),
    ("axial", {"segment": 0}, "segment is 0"),
    ("axial", {"dim": 6, "first": 6}, "first is 6; they must be at least 1, and first below dim 6"),
    ("axial", {"order": "trax"}, "order is 'trax'; it must be one of 'released', 'survey'"),
    ("axial", {"std": -1.0}, "std is -1.0; it must be at least 0"),
    ("cape", ODD, r"dim is 9; .*even"),
    ("cape", {"max_shift": -1}, "shifts must not be negative, and the scale at least 1"),
    ("cape", {"max_local": -0.1}, "shifts must not be negative, and the scale at least 1"),
    ("cape", {"max_shift": float("inf")}, "max_shift is inf; it must be a finite number"),
    ("cape", {"max_scale": 0.9}, "shifts must not be negative, and the scale at least 1"),
    ("complex", ODD, r"dim is 9; .*even"),
    ("floater", ODD, r"dim is 9; .*even"),
    ("floater", ODD | {"injection": "add", "start": "sinusoidal"}, r"dim is 9; .*even"),
    ("floater", {"injecton": "add"}, "unknown option 'injecton' of position model 'floater'; .*'injection'"),
    ("floater", {"injection": "kv"}, "injection is 'kv'; it must be one of 'qkv', 'add'"),
    ("floater", {"start": "big"}, "start is 'big'"),
    ("floater", {"start": "sinusoidal"}, "start='sinusoidal' goes with injection='add'"),
    ("floater", {"share": "heads"}, "share is 'heads'"),
    (
        "floater",
        {"time_scale": "learnt"},
        "time_scale is 'learnt'; it must be a positive number or 'learned'",
    ),
    ("floater", {"uncovered": "drop"}, "uncovered is 'drop'; it must be one of 'keep', 'cut', 'round'"),
    (
        "floater",
        {"injection": "add", "uncovered": "cut"},
        "injection='add' with field='mlp' and start='small' has none",
    ),
    ("learned", {"blocks": [0, 3]}, r"blocks is \[0, 3\]; there are blocks 0 to 2"),
    ("learned", {"blocks": [-1]}, "there are blocks 0 to 2"),
    ("learned", {"blocks": []}, "there are blocks 0 to 2"),
    ("mtan", {"width": 0}, "width is 0; it must be a multiple of heads 2"),
    ("mtan", {"width": 5}, "width is 5; it must be a multiple of heads 2"),
    ("mvpe", ODD, r"dim is 9; .*even"),
    ("mvpe", {"k": 0}, "k is 0; it must not be 0"),
    ("rnn", ODD | {"input": "vector"}, r"dim is 9; .*even"),
    ("rnn", {"depth": 3}, "depth is 3; it must be one of 1, 2"),
    ("rnn", {"input": "time"}, "input is 'time'"),
    ("seqpe", {"digits": 0}, "digits is 0"),
    ("seqpe", {"depth": 0}, "depth is 0"),
    ("seqpe", {"dropout": 1.0}, "dropout is 1.0"),
    ("shortformer", ODD, r"dim is 9; .*even"),
    ("sinusoidal", ODD, r"dim is 9; .*even"),
    ("sinusoidal", {"blocks": "first"}, "blocks is 'first'; it must be 'input', 'all' or a list"),
    ("sinusoidal", {"blocks": 1}, "blocks is 1; it must be 'input', 'all' or a list"),
    ("sinusoidal", {"uncovered": "drop"}, "uncovered is 'drop'; it must be one of 'keep', 'cut', 'round'"),
    ("universal", ODD, r"dim is 9; .*even"),
    # composed
    ("compose", {"models": []}, "the list of encodings is empty"),
    ("compose", {"models": ["alib"]}, "unknown position model 'alib'; did you mean 'alibi'"),
    ("compose", {"models": [{"nme": "alibi"}]}, "is not an encoding; give a name, or a mapping of name"),
    ("compose", {"models": [{"name": "alibi", 1: 2}]}, "is not an encoding; give a name, or a mapping"),
    ("compose", {"models": [{"name": "alibi", "m": 1}]}, "unknown option 'm' of position model 'alibi'"),
    ("compose", {"models": ["t5", "deberta"]}, "the scales of the dot products differ"),
    (
        "compose",
        {"models": ["shaw", "pope"]},
        "'pope' changes the width .* which 'shaw' needs",
    ),
    (
        "compose",
        {"models": ["pope", "path"]},
        "'pope' changes the width .* which 'path' needs",
    ),
    (
        "compose",
        {"models": ["rotary", {"name": "compose", "models": ["alibi", "pope"]}]},
        "'pope' reads single components .* which 'rotary' rotates",
    ),
    (
        "compose",
        {"models": ["pope", "self_extend"]},
        "'pope' reads single components of queries and keys, which 'self_extend' rotates",
    ),
    (
        "compose",
        {"models": ["floater_cde", "self_extend"]},
        "'self_extend' changes the width .* which 'floater_cde' needs",
    ),
    (
        "compose",
        {"models": ["forgetting", "spe_sine"]},
        "'spe_sine' changes the width .* is fixed by 'forgetting'",
    ),
    ("compose", {"models": ["shortformer", "tener"]}, "two encodings choose what the projections read"),
    ("compose", {"models": ["forgetting", "path"]}, "two encodings append components to the keys"),
    ("mix", {"model": "spe_sine", "other": "t5"}, "'spe_sine' changes the width .* is fixed by 't5'"),
    ("compose", {"models": ["pnat"]}, "needs its own kind of decoder"),
    ("mix", {"every": 1}, "every is 1; it must be at least 2"),
    ("mix", {"other": "synthesizer"}, "'synthesizer' takes the products of queries and keys away"),
    # crosslingual
    ("broken_residual", {"layer": -1}, "layer is -1; there are blocks 0 to 2"),
    ("broken_residual", {"layer": 3}, "layer is 3; there are blocks 0 to 2"),
    ("convolution", {"kernel": 0}, "kernel is 0; it must be at least 1, and odd unless causal"),
    ("convolution", {"kernel": 4}, "kernel is 4; it must be at least 1, and odd unless causal"),
    ("xl", {"join": "head"}, "join is 'head'"),
    ("xl_heads", {"heads": 1}, "heads is 1, half of which .* set reordered to 0 or 1"),
    # decoder
    ("ldpe", ODD, r"dim is 9; .*even"),
    ("noisy_length", {"window": 0}, "window is 0; it must be at least 1"),
    ("noisy_length", {"kind": "sum"}, "kind is 'sum'; it must be one of 'difference', 'ratio'"),
    ("pnat", ODD, r"dim is 9; .*even"),
    # relative
    ("bipe", {"delimiters": [-1]}, r"delimiters is \[-1\]; token ids are not negative"),
    ("bipe", {"between": "fire"}, "between is 'fire'; it must be one of 'rotary', 'alibi'"),
    (
        "bipe",
        {"delimiters": [1], "between": "alibi", "base": -5.0},
        r"base is -5\.0, but between='alibi' rotates no pairs",
    ),
    (
        "bipe",
        {"delimiters": [1], "between": "alibi", "pairs": "x"},
        "pairs is 'x', but between='alibi' rotates no pairs",
    ),
    *(
        ("bipe", {name: value}, f"{name} is {value!r}, but without delimiters a text is one segment")
        for name, value in (("between", "alibi"), ("pairs", "interleaved"), ("base", 500.0))
    ),
    ("chang", {"window": 0}, "window is 0; it must be at least 1"),
    ("chen_absolute", {"rank": 0}, "rank is 0; it must be at least 1"),
    ("cope", {"positions": 1}, "positions is 1; it must be at least 2"),
    ("dape", {"model": "rotary"}, "model is 'rotary'; it must be an encoding that adds a bias"),
    ("dape", {"model": "cope"}, "model is 'cope'; it must be an encoding that adds a bias"),
    ("dape", {"model": "none"}, "model is 'none'; it must be an encoding that adds a bias"),
    ("dape", {"model": "tupe_a"}, r"model is 'tupe_a', which scales .* by 0\.3.*; it must divide them"),
    ("dape", {"model": "synthesizer"}, r"model is 'synthesizer', .* by 0; it must divide them by sqrt"),
    ("dape", {"model": "t5", "options": {"scaled": False}}, "model is 't5', which scales .* by 1; it must"),
    ("dape", {"options": {1: "log"}}, r"options is \{1: 'log'\}; it must be a mapping of names or None"),
    ("dape", {"options": {"kid": "log"}}, "unknown option 'kid' of position model 'kerple'"),
    ("deberta", {"terms": "none"}, "terms is 'none'"),
    ("deberta", {"direction": "left"}, "direction is 'left'; it must be one of 'paper', 'released'"),
    ("deberta", {"buckets": "linear"}, "buckets is 'linear'"),
    ("deberta", {"max_distance": -1}, "max_distance is -1; it must be at least 1"),
    ("deberta", {"max_distance": 3}, "max_distance is 3, but with buckets='clip' distances end at span"),
    (
        "deberta",
        {"terms": "content_to_position", "bias": True},
        "bias is True, but with terms='content_to_position' P is not projected to queries",
    ),
    (
        "deberta",
        {"terms": "content_to_position", "direction": "released"},
        "direction is 'released', but with terms='content_to_position' P is not projected to queries",
    ),
    ("deberta", {"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
    ("deberta", {"span": 0}, "span is 0; buckets='clip' needs at least 1"),
    ("deberta", {"span": 3, "buckets": "log"}, "span is 3; buckets='log' needs at least 4"),
    (
        "deberta",
        {"span": 8, "buckets": "log", "max_distance": 5},
        "max_distance is 5; with a span of 8 it must be above 5",
    ),
    ("cape", {"causal": True, "normalize": True}, "normalize is True; the mean .* would show a causal stack"),
    ("disan", {"causal": True, "direction": "both"}, "direction is 'both'; heads that look backward"),
    ("disan", {"causal": True, "direction": "backward"}, "direction is 'backward'; heads that look backward"),
    ("disan", {"direction": "up"}, "direction is 'up'; it must be one of 'both', 'forward'"),
    ("fire", {"width": 0}, "width is 0; it must be at least 1"),
    ("fire", {"threshold": 0.0}, "threshold is 0.0; it must be positive"),
    ("floater", {"activation": "sine"}, "unknown activation 'sine'; valid: 'tanh'"),
    ("floater_relative", {"width": 0}, "width is 0; it must be at least 1"),
    ("floater_relative", {"clip": 0}, "clip is 0; it must be at least 1"),
    ("floater_relative", {"clip": "half"}, "clip is 'half'"),
    ("floater_relative", {"start": "big"}, "start is 'big'"),
    ("floater_relative", {"start": "zero", "tail": True}, "start='zero' goes with tail=False"),
    ("floater_relative", {"solver": "dopri"}, "dopri5"),
    ("floater_cde", {"dim": 12}, "head_dim is 6; 'floater_cde' needs a multiple of 4"),
    ("floater_cde", {"base": 1.0}, "base is 1.0; it must be above 1"),
    (
        "floater_cde",
        {"positions": False, "base": 500.0},
        r"base is 500\.0, but positions=False leaves out rotary's frequencies",
    ),
    ("floater_cde", {"kernel": 0}, "kernel is 0; it must be at least 1"),
    ("floater_cde", {"std": -1.0}, "std is -1.0; it must be at least 0"),
    ("floater_rotary", {"basis": "skew"}, "basis is 'skew'; it must be one of 'fixed', 'learned'"),
    ("floater_rotary", {"rate": 0.0}, "rate is 0.0; it must be positive"),
    ("floater_rotary", {"dim": 6}, "head_dim is 3; rotary positions need an even one"),
    (
        "floater_rotary",
        {"uncovered": "drop"},
        "uncovered is 'drop'; it must be one of 'keep', 'cut', 'round'",
    ),
    ("floater_relative", {"clip": float("inf")}, "clip is inf; it must be at least 1, 'auto' or None"),
    ("floater_rotary", {"base": float("inf")}, "base is inf; it must be a finite number"),
    ("forgetting", {"start": float("-inf")}, "start is -inf; it must be a finite number"),
    ("fope", {"gain": -1.0}, "gain is -1.0"),
    ("fope", {"base": 1.0}, "base is 1.0"),
    ("fope", {"max_length": 6}, "max_length is 6; no period of rotary positions fits"),
    ("gaussian", {"offsets": []}, "offsets is empty"),
    ("gaussian", {"std": 0.0}, "std is 0.0; it must be positive"),
    ("grape_a", {"gates": "value"}, "gates is 'value'; it must be one of 'both', 'query', 'key'"),
    ("grape_ap", {"width": 3}, "width is 3; it must be an even number, at least 2"),
    ("grape_ap", {"width": 0}, "width is 0; it must be an even number, at least 2"),
    ("kerple", {"kind": "sine"}, "kind is 'sine'; it must be one of 'log', 'power'"),
    ("path", {"rank": 0}, "rank is 0; it must be at least 1"),
    ("path", {"kernel": 0}, "kernel is 0; it must be at least 1"),
    ("pope", {"base": 1.0}, r"base is 1\.0; it must be above 1"),
    ("rotary", {"pairs": "none"}, "pairs is 'none'; it must be one of 'interleaved', 'half'"),
    ("rotary", {"base": 1.0}, "base is 1.0; it must be above 1"),
    ("rotary", {"dim": 6}, "head_dim is 3; rotary positions need an even one"),
    ("rotary", {"uncovered": "drop"}, "uncovered is 'drop'; it must be one of 'keep', 'cut', 'round'"),
    ("sandwich", {"width": 3}, "width is 3; it must be even and at least 2"),
    ("sandwich", {"width": 0}, "width is 0; it must be even and at least 2"),
    ("self_extend", {"form": "round"}, "form is 'round'; it must be one of 'floor', 'leaky', 'rectified'"),
    ("self_extend", {"group": 1}, "group is 1; it must be above 1"),
    (
        "self_extend",
        {"form": "rectified", "group": 3},
        "group is 3, but form='rectified' has no groups beyond the window",
    ),
    ("self_extend", {"window": 0}, "window is 0; it must be at least 1"),
    ("shaw", {"clip": 0}, "clip is 0; it must be at least 1"),
    ("spe_conv", {"kernel": 0}, "kernel is 0"),
    ("spe_conv", {"seed": -1}, "seed -1"),
    ("spe_sine", {"sines": 0}, "sines is 0"),
    ("spe_sine", {"realizations": 0}, "realizations is 0 and seed 0"),
    ("t5", {"directions": "left"}, "directions is 'left'; it must be one of 'auto', 'both', 'past'"),
    ("t5", {"start": "normal"}, "start is 'normal'; it must be one of 'released', 'transformers'"),
    ("t5", {"buckets": 5}, "buckets is 5; it must be even and at least 4"),
    ("t5", {"max_distance": 8}, "max_distance is 8; it must be above the 8 exact buckets"),
    ("tener", {"form": "code"}, "form is 'code'; it must be one of 'paper', 'released'"),
    ("tener", {"heads": 8}, "head_dim is 1; form='paper' needs an even one of at least 2"),
    (
        "tener",
        {"heads": 4, "form": "released"},
        "head_dim is 2; form='released' needs an even one of at least 4",
    ),
    ("transformer_xl", {"dropout": -0.1}, "dropout is -0.1; it must be at least 0 and below 1"),
    ("transformer_xl", ODD, "dim is 9; sinusoidal positions need an even one"),
    ("window", {"size": -1}, "size is -1; it must not be negative"),
    ("xpos", {"scale_base": 0}, "scale_base is 0; it must be positive"),
    ("xpos", {"dim": 6}, "head_dim is 3; rotary positions need an even one"),
    # structural
    ("graformer", {"reach": 0}, "reach 0 must be at least 1"),
    ("graformer", {"subwords": -1}, "subwords -1 at least 0"),
    ("graph_bert", ODD, r"dim is 9; .*even"),
    ("graph_bert", {"restart": 1.0}, r"restart 1\.0 between 0 and 1"),
    ("graph_bert", {"rounds": -1}, "rounds -1 must be at least 0"),
    ("graph_gru", ODD, r"dim is 9; .*even"),
    ("graph_gru", {"labels": 0}, "labels is 0"),
    ("graphormer", {"labels": 0}, "labels is 0; it must be at least 1"),
    ("graphormer", {"hops": 0}, "hops is 0; it must be at least 1"),
    ("graphormer", {"reach": 0}, "reach is 0; it must be at least 1"),
    ("graphormer", {"degrees": 0}, "degrees is 0; it must be at least 1"),
    ("laplacian", {"attention": "some"}, "attention is 'some'"),
    ("laplacian", {"vectors": 0}, "vectors is 0; it must be at least 1"),
    ("laplacian", {"vectors": 9, "projection": False}, "vectors is 9; it must be from 1 to dim 8"),
    ("rwpe", {"steps": 0}, "steps is 0; it must be at least 1"),
    ("spr_absolute", ODD, r"dim is 9; .*even"),
    ("spr_absolute", {"sequence": "sum"}, "sequence is 'sum'; it must be one of 'none', 'add', 'fuse'"),
    ("spr_relative", {"reach": 0}, "reach is 0; it must be at least 1"),
    ("spr_relative", {"blocks": [3]}, "there are blocks 0 to 2"),
    ("structural", ODD, r"dim is 9; .*even"),
    ("structural", {"encoder": "gru"}, "encoder is 'gru'; it must be one of 'attention', 'cnn'"),
    ("structural", {"labels": 0}, "labels is 0; it must be at least 1"),
    ("structural", {"kernel": 0}, "kernel is 0"),
    ("structural", {"kernel": 3}, "kernel is 3, which encoder='attention' does not read"),
    ("structural", {"encoder": "cnn", "width": 8}, "width is 8, which encoder='cnn' does not read"),
    ("tree", {"branching": 0}, "branching 0 and depth 4 must be at least 1"),
    ("tree", {"branching": 3, "depth": 3}, "dim 8 is too small for 3 steps of 3 branches, 9 components"),
    ("tree", {"branching": 4, "depth": 2, "binary": True}, "branching is 4; a binary tree has 2"),
    # untied
    ("tupe_a", {"cls": "last"}, "cls is 'last'; it must be one of 'first', 'special', 'none'"),
    ("tupe_a", {"matrix": "low"}, "matrix is 'low'; it must be one of 'factored', 'free'"),
    ("tupe_a", {"std": -0.1}, "std is -0.1; it must be at least 0"),
    ("untied_cls", {"model": "shaw"}, r"\[CLS\] can be untied from a content-free bias only; 'shaw' is none"),
    ("untied_cls", {"model": "window"}, "'window' is none"),
    ("untied_cls", {"model": "sinusoidal"}, "'sinusoidal' is none"),
    ("untied_cls", {"model": "alibis"}, "unknown position model 'alibis'; did you mean 'alibi'"),
    ("untied_cls", {"options": {"bucket": 3}}, "unknown option 'bucket' of position model 't5'; .*'buckets'"),
    ("untied_cls", {"cls": "none"}, "cls is 'none'; it must be one of 'first', 'special'"),
]
BEFORE_THE_FIRST = Positions(torch.tensor([[-1, 0]]), torch.tensor([[-1, 0]]))
CACHED, REAL, LONG = (
    Positions.arange(1, offset=3),
    Positions.times(torch.tensor([[0.5]])),
    Positions.arange(17),
)
BELOW_ZERO = Positions.times(torch.tensor([[-0.5, 1.0]]))
OFF_THE_GRID = Positions.arange(2).but(coordinates=torch.tensor([[[0.0, 1.0], [-2.0, 0.0]]]))
POSITIONS = [
    *(
        (name, options, BELOW_ZERO, f"'{name}': positions must be finite and not negative, got -0.5")
        for name, options in (("floater", {}), ("floater", {"injection": "add"}), ("floater_grid", {}))
    ),
    ("floater_grid", {}, OFF_THE_GRID, "'floater_grid': positions must be .* not negative, got -2"),
    ("clock", {"model": "floater"}, BELOW_ZERO, "'floater' starts at position 0; position -0.5 was"),
    (
        "spe_conv",
        {},
        Positions(*2 * [torch.tensor([[3, 2**20 + 3]])]),
        "positions 3 and 1048579 are too far apart: 'spe_conv' samples noise for at most 1048576",
    ),
    *((name, {}, BEFORE_THE_FIRST, "starts at position 0; position -1") for name in ("learned", "rnn")),
    *(
        (name, {}, REAL, f"'{name}' counts tokens; real positions need a model such as 'floater'")
        for name in ("bert_ad", "chang", "learned", "rnn", "rnn_transformer", "spe_conv", "tupe_a", "tupe_r")
    ),
    ("rnn_transformer", {}, CACHED, "a GRU reads a whole sequence: decode without a cache"),
    (
        "transformer_xl",
        {},
        REAL.but(group=(2, 3)),
        r"group \(reading.group\) is \(2, 3\); 'transformer_xl' groups whole distances",
    ),
    ("pnat", {"site": "decoder"}, CACHED, "decode without a cache"),
    ("pnat", {}, Positions.packed([[2, 1]]), "one document a row"),
    *(
        (name, {}, LONG, f"'{name}' ends at position 15; position 16 was requested")
        for name in (
            "bert_ad",
            "chen_absolute",
            "deberta",
            "shaw_absolute",
            "synthesizer",
            "tupe_a",
            "tupe_r",
        )
    ),
    *(
        (name, {}, LONG, f"'{name}' ends at a distance of 15; 16 was requested")
        for name in ("chen_relative", "dufter_relative", "huang1", "huang2", "huang3", "huang4")
    ),
    *(
        (name, {"cls": "special"}, Positions.arange(5), r"reads Positions\.special, which is not given")
        for name in ("tupe_a", "tupe_r", "untied_cls")
    ),
    ("xl", {}, Positions.arange(3), "no reordered in the positions"),
    (
        "tree",
        {},
        Positions.tree([[-1], [-1, 0, 0, 0]]),
        "tree 1: node 3 is child 3 of its parent; branching is 2",
    ),
    (
        "graphormer",
        {},
        Positions.graph([[(0, 1, 4)]]),
        r"'graphormer' has labels 0 to 0 \(option labels\); an edge has label 4",
    ),
    *(
        (name, {"labels": 2}, Positions.graph([[(0, 1, 2)]]), rf"'{name}' has labels 0 to 1 .*has label 2")
        for name in ("structural", "graph_gru")
    ),
]


@pytest.mark.parametrize(("name", "options", "message"), OPTIONS)
def test_options_that_are_not_valid(name, options, message):
    check_refusal(name, options, message)


@pytest.mark.parametrize(("name", "options", "positions", "message"), POSITIONS)
def test_positions_that_an_encoding_does_not_have(name, options, positions, message):
    check_refusal(name, options, message, positions)


def test_weights_that_are_not_finite_are_no_error_of_the_positions() -> None:
    """Evaluation by length records a PositionError as a length that a model cannot read."""
    model = build("floater", dim=8, heads=2, layers=1, max_length=16)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    with pytest.raises(ValueError, match="start must be finite") as caught:
        model.prepare(Positions.arange(4))
    assert not isinstance(caught.value, PositionError)
