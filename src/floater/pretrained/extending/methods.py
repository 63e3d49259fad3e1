"""Methods of extension, by kind of positions, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from floater.pretrained.extending import continuation, rotary, stored
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import DESCRIPTIONS, Kind
from floater.pretrained.extending.install import PLAIN
from floater.pretrained.extending.model_positions import ModelPositions

INSTALLED = ("clex", "self_extend", "log_n")
"""Methods for rotary positions that this library computes."""

_OPTIONS: Mapping[Kind, Mapping[str, frozenset[str]]] = {
    "table": {**dict.fromkeys(continuation.METHODS, frozenset({"special"})), "sinusoid": frozenset()},
    "image": dict.fromkeys(continuation.METHODS, frozenset()),
    "rotary": {
        "linear": frozenset(),
        "ntk": frozenset(),
        "dynamic": frozenset({"declared"}),
        "yarn": frozenset({
            "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"
        }),
        "longrope": frozenset({"short_factor", "long_factor", "attention_factor"}),
        "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
        "clipped": frozenset({"clipped"}),
        "dropped": frozenset(),
        "clex": frozenset({"start", "declared"}),
        "self_extend": frozenset({"window", "group", "temperature"}),
        "log_n": frozenset(),
    },
    "bias": {"flow": frozenset({"trained"})},
}  # fmt: skip
"""Options of each method, by kind of positions."""

_DEFAULTS: Mapping[Kind, str] = {
    "table": "flow",
    "image": "interpolation",
    "rotary": "yarn",
    "bias": "flow",
}


def choose_method(
    positions: ModelPositions, method: str | None, options: Mapping[str, Any], name: str
) -> str:
    """Return the name of the method that extends a model.

    Args:
        positions: positions of the model.
        method: name of a method, or None for the default of the kind of positions.
        options: options of the method.
        name: name of the model's class, for messages.

    Raises:
        ExtendError: if the positions do not allow the method, or it does not have an option.
    """
    scaling, description = positions.scaling, DESCRIPTIONS[positions.kind]
    methods = _OPTIONS[positions.kind]
    if scaling is not None:  # it is made wider with its own options; "dynamic" reads the length itself
        others = () if scaling == "dynamic" else ("self_extend", "log_n")
        methods = {scaling: frozenset(), **{other: methods[other] for other in others}}
        description = f"rotary positions that are scaled by {scaling!r} already"
    if positions.stored:
        methods = {each: methods[each] for each in stored.METHODS}
        description = "rotary positions that are weights"
    method = _default(positions) if method is None else method
    if method not in methods:
        allowed = ", ".join(map(repr, methods))
        raise ExtendError(f"method is {method!r}; {name} has {description}, which allow {allowed}")
    valid = methods[method]
    if unknown := sorted(options.keys() - valid):
        raise ExtendError(
            f"method {method!r} has no option {unknown[0]!r}; valid: {', '.join(sorted(valid)) or 'none'}"
        )
    if method in {*INSTALLED, *PLAIN} and positions.unread_bodies:
        body = type(positions.unread_bodies[0]).__name__
        raise ExtendError(f"{name} has a {body} that reads no text; extend the part that reads texts")
    return method


def _default(positions: ModelPositions) -> str:
    """Return the method of a model for which none is named."""
    if positions.stored:
        return "ntk"
    if positions.scaling is not None:
        return positions.scaling
    if positions.kind == "table" and all(table.sinusoidal for table in positions.tables):
        return "sinusoid"
    method = _DEFAULTS[positions.kind]
    for body in positions.bodies if positions.kind == "rotary" else ():
        if rotary.refusal(body, method, 2 * int(body.config.max_position_embeddings), {}) is not None:
            return "ntk"
    return method
