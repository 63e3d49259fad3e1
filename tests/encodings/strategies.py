"""Hypothesis strategies of encodings with random valid options, and of compositions, nested ones too.

A drawn encoding is its name and options, as `build` takes them and `FloaterConfig.position` with
`position_options`.
"""

from typing import Any

from hypothesis import strategies as st

from floater import PositionError, PositionModel, build, catalogue

SIZES = {"dim": 16, "heads": 2, "layers": 2, "max_length": 16, "vocabulary": 11}
"""Sizes that every drawn encoding fits."""

Encoding = tuple[str, dict[str, Any]]

_pairs = st.sampled_from(["interleaved", "half"])
_base = st.sampled_from([10.0, 500.0, 10000.0])
_uncovered = st.sampled_from(["keep", "cut", "round"])
_blocks = st.sampled_from(["input", "all", [1]])
_solver = st.sampled_from(["auto", "rk4", "dopri5"])
_scaling = st.sampled_from(
    [None, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0}]
)
_log_buckets = st.sampled_from([4, 8, 32])
_cls = st.just("first")
_biases: st.SearchStrategy[Encoding] = st.deferred(
    lambda: encodings(
        ["alibi", "fire", "kerple", "sandwich", "t5", "chen_relative", "dufter_relative", "floater_relative"]
    )
)


def _with_inner(name: str, more: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Options of an encoding that changes another one, whose name and options are its own options."""
    inner = _biases.map(lambda drawn: {"model": drawn[0], "options": drawn[1]})
    rest = st.fixed_dictionaries({}, optional=more)
    return st.tuples(inner, rest).map(lambda both: both[0] | both[1])


_OPTIONS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "abacus": {"digits": st.sampled_from([[3, 6, 9, 1], [0]]), "max_offset": st.integers(0, 9)},
    "alibi_grid": {"axes": st.integers(1, 3)},
    "axial": {"segment": st.integers(1, 9), "order": st.sampled_from(["released", "survey"])},
    "bert_r": {"buckets": _log_buckets, "max_distance": st.sampled_from([40, 128])},
    "bipe": {
        "delimiters": st.sampled_from([[], [4, 9]]),
        "between": st.sampled_from(["rotary", "alibi"]),
        "pairs": _pairs,
    },
    "broken_residual": {"layer": st.sampled_from([None, 0, 1])},
    "cape": {"max_shift": st.floats(0, 9), "max_local": st.floats(0, 0.5), "max_scale": st.floats(1, 2)},
    "chang": {"window": st.integers(1, 9), "keys": st.booleans()},
    "chen_absolute": {
        "rank": st.sampled_from([None, 1, 5]),
        "share_heads": st.booleans(),
        "share_layers": st.booleans(),
        "segments": st.sampled_from([0, 2]),
    },
    "chen_relative": {
        "share_heads": st.booleans(),
        "share_layers": st.booleans(),
        "segments": st.sampled_from([0, 2]),
    },
    "complex": {"periods": st.sampled_from(["component", "word", "both"])},
    "complex_attention": {"periods": st.sampled_from(["component", "word", "both"])},
    "convolution": {"kernel": st.sampled_from([1, 3, 5])},
    "cope": {"positions": st.integers(2, 12)},
    "deberta": {
        "span": st.sampled_from([None, 4, 9]),
        "terms": st.sampled_from(["both", "content_to_position", "position_to_content"]),
        "direction": st.sampled_from(["paper", "released"]),
        "buckets": st.sampled_from(["clip", "log"]),
        "norm": st.booleans(),
        "share": st.booleans(),
        "absolute": st.booleans(),
    },
    "disan": {"direction": st.sampled_from(["forward", "diagonal"])},
    "dynamic_bias": {
        "width": st.sampled_from([None, 5]),
        "depth": st.integers(1, 3),
        "log_distance": st.booleans(),
    },
    "fire": {"width": st.integers(1, 9), "threshold": st.floats(0.5, 32), "share_layers": st.booleans()},
    "floater": {
        "injection": st.sampled_from(["qkv", "add"]),
        "blocks": _blocks,
        "time_scale": st.sampled_from([0.5, "learned"]),
        "share": st.sampled_from(["blocks", "none"]),
        "solver": _solver,
        "hidden": st.sampled_from([None, 6]),
        "field": st.sampled_from(["mlp", "bounded"]),
    },
    "floater_grid": {"axes": st.integers(1, 3), "blocks": _blocks, "solver": _solver},
    "floater_relative": {
        "width": st.integers(1, 9),
        "clip": st.sampled_from(["auto", None, 5]),
        "tail": st.booleans(),
        "normalise": st.booleans(),
        "solver": _solver,
    },
    "floater_cde": {
        "base": _base,
        "positions": st.booleans(),
        "kernel": st.integers(1, 4),
        "std": st.floats(0, 1),
    },
    "floater_rotary": {
        "pairs": _pairs,
        "base": _base,
        "basis": st.sampled_from(["fixed", "learned"]),
        "uncovered": _uncovered,
    },
    "floater_tree": {"width": st.integers(1, 9), "tail": st.booleans()},
    "fope": {"gain": st.floats(0, 1), "learned": st.booleans()},
    "forgetting": {"start": st.floats(-2, 6)},
    "gaussian": {"offsets": st.sampled_from([None, [-1.0, 1.0]]), "std": st.floats(0.5, 4)},
    "graformer": {"reach": st.sampled_from([None, 3]), "subwords": st.integers(0, 2)},
    "grape_a": {"gates": st.sampled_from(["both", "query", "key"])},
    "grape_ap": {"width": st.sampled_from([2, 4, 8])},
    "graph_bert": {"rounds": st.integers(0, 3), "restart": st.floats(0.05, 0.9)},
    "graph_gru": {"labels": st.integers(1, 3), "shared": st.booleans()},
    "graphormer": {
        "hops": st.integers(1, 4),
        "reach": st.sampled_from([None, 2]),
        "degrees": st.integers(4, 9),
    },
    "kerple": {"kind": st.sampled_from(["log", "power"]), "share_layers": st.booleans()},
    "language_specific": {"languages": st.integers(2, 4)},
    "laplacian": {"vectors": st.integers(1, 9), "attention": st.sampled_from(["neighbours", "all"])},
    "learned": {"blocks": _blocks},
    "learned_grid": {"axes": st.integers(1, 2), "blocks": _blocks},
    "liere": {"axes": st.integers(1, 3), "generator": st.sampled_from([None, 2, 4])},
    "linear_time": {"blocks": _blocks},
    "mrope": {
        "sections": st.sampled_from([None, [2, 1, 1], [0, 4, 0]]),
        "interleaved": st.booleans(),
        "pairs": _pairs,
    },
    "mtan": {"content": st.booleans(), "width": st.sampled_from([None, 6])},
    "mvpe": {"k": st.floats(2, 2000)},
    "path": {"rank": st.integers(1, 9), "kernel": st.integers(1, 4)},
    "pope": {"base": _base},
    "rnn": {"input": st.sampled_from(["scalar", "vector"]), "depth": st.integers(1, 2), "blocks": _blocks},
    "rotary": {
        "pairs": _pairs,
        "base": _base,
        "partial": st.sampled_from([0.25, 0.5, 1.0]),
        "scaling": _scaling,
        "uncovered": _uncovered,
    },
    "rotary_axial": {"axes": st.sampled_from([1, 2, 4]), "pairs": _pairs, "base": _base},
    "rotary_mixed": {"pairs": _pairs, "base": _base},
    "rr_transformer": {"clip": st.integers(1, 9), "values": st.booleans()},
    "rwpe": {"steps": st.integers(1, 9)},
    "sandwich": {"width": st.sampled_from([2, 8])},
    "self_extend": {
        "form": st.sampled_from(["floor", "leaky", "rectified"]),
        "group": st.integers(2, 4),
        "window": st.integers(1, 5),
        "pairs": _pairs,
        "partial": st.sampled_from([0.5, 1.0]),
    },
    "seqpe": {"digits": st.integers(2, 4), "depth": st.integers(1, 2)},
    "shaw": {"clip": st.integers(1, 9), "values": st.booleans()},
    "shaw_absolute": {"values": st.booleans()},
    "sinusoidal": {"blocks": _blocks, "uncovered": _uncovered},
    "sinusoidal_grid": {"axes": st.integers(1, 2), "blocks": _blocks},
    "spe_conv": {"kernel": st.integers(1, 9), "realizations": st.integers(1, 9), "gated": st.booleans()},
    "spe_sine": {"sines": st.integers(1, 3), "realizations": st.integers(1, 9), "gated": st.booleans()},
    "spr_absolute": {"sequence": st.sampled_from(["none", "add", "fuse"])},
    "spr_relative": {"reach": st.sampled_from([None, 2]), "blocks": _blocks},
    "stick_breaking": {"attend_current": st.booleans(), "remainder": st.booleans()},
    "structural": {"labels": st.integers(1, 3), "encoder": st.sampled_from(["attention", "cnn"])},
    "synthesizer": {"learned": st.booleans()},
    "t5": {
        "directions": st.sampled_from(["auto", "both", "past"]),
        "buckets": _log_buckets,
        "max_distance": st.sampled_from([40, 128]),
        "scaled": st.booleans(),
    },
    "tener": {"form": st.sampled_from(["paper", "released"])},
    "transformer_xl": {"untie": st.booleans()},
    "tree": {"branching": st.integers(2, 4), "depth": st.integers(1, 4), "weighted": st.booleans()},
    "tupe_a": {"cls": _cls, "matrix": st.sampled_from(["factored", "free"])},
    "tupe_r": {"cls": _cls, "matrix": st.sampled_from(["factored", "free"]), "buckets": _log_buckets},
    "window": {"size": st.sampled_from([None, 0, 3])},
    "xl": {"join": st.sampled_from(["sum", "learned"])},
    "xl_heads": {"reordered": st.sampled_from([None, 0, 1, 2])},
    "xpos": {"pairs": _pairs, "base": _base, "scale_base": st.floats(32, 512)},
}
_WHOLE = {
    "dape": _with_inner("dape", {"width": st.integers(1, 9)}),
    "untied_cls": _with_inner("untied_cls", {"cls": _cls}),
}

COMPOSITIONS = ("compose", "mix")
SINGLE = tuple(name for name in catalogue() if name not in COMPOSITIONS)
PARTS = tuple(
    name for name in SINGLE if not catalogue()[name].length_aware and catalogue()[name].autoregressive
)
"""The encodings that can be parts of another."""


def built(encoding: Encoding, **changes: Any) -> PositionModel | None:
    """The position model of a drawn encoding; None if the library refuses it.

    Args:
        encoding: name and options.
        changes: to `SIZES`, or other arguments of `build`.
    """
    name, options = encoding
    try:
        return build(name, **SIZES | changes, **options)
    except PositionError:
        return None


def options_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Random options of an encoding; each may be left out. Some combinations are refused."""
    if name in _WHOLE:
        return _WHOLE[name]
    return st.fixed_dictionaries({}, optional=_OPTIONS.get(name, {}))


def encodings(names: Any = SINGLE, **changes: Any) -> st.SearchStrategy[Encoding]:
    """Encodings with random valid options.

    Args:
        names: names to choose from.
        changes: to `SIZES`, or other arguments of `build`, which valid options depend on.
    """
    drawn = st.sampled_from(list(names)).flatmap(lambda name: st.tuples(st.just(name), options_of(name)))
    return drawn.filter(lambda encoding: built(encoding, **changes) is not None)


def _part(encoding: Encoding) -> Any:
    name, options = encoding
    return {"name": name, **options} if options else name


def compositions(names: Any = PARTS, *, depth: int = 2, **changes: Any) -> st.SearchStrategy[Encoding]:
    """Compositions with random parts, which are compositions themselves up to a depth.

    Args:
        names: names of the innermost parts.
        depth: most levels of compositions, at least 1.
        changes: see `encodings`.
    """
    single = encodings(names, **changes)
    inner = single if depth == 1 else st.one_of(single, compositions(names, depth=depth - 1, **changes))
    several = st.lists(inner.map(_part), min_size=1, max_size=3).map(
        lambda parts: ("compose", {"models": parts})
    )
    mixed = st.fixed_dictionaries(
        {"model": inner.map(_part), "other": inner.map(_part), "every": st.just(2)}
    ).map(lambda options: ("mix", options))
    either: st.SearchStrategy[Encoding] = st.one_of(several, several, mixed)
    return either.filter(lambda encoding: built(encoding, **changes) is not None)
