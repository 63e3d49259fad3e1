"""Methods of extension, by kind of positions, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from floater.pretrained.extending import continuation, rotary
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import DESCRIPTIONS, Kind
from floater.pretrained.extending.install import PLAIN
from floater.pretrained.extending.model_positions import ModelPositions

INSTALLED = ("clex", "self_extend", "log_n")
"""Methods for rotary positions that this library computes."""

_METHODS: Mapping[Kind, tuple[str, ...]] = {
    "table": tuple(continuation.METHODS),
    "image": tuple(continuation.METHODS),
    "rotary": (*rotary.METHODS, *INSTALLED),
    "bias": ("flow",),
}
_DEFAULTS: Mapping[Kind, str] = {
    "table": "flow",
    "image": "interpolation",
    "rotary": "yarn",
    "bias": "flow",
}
_ROTARY_OPTIONS: Mapping[str, frozenset[str]] = {
    "linear": frozenset(),
    "ntk": frozenset(),
    "dynamic": frozenset({"declared"}),
    "yarn": frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    "longrope": frozenset({"short_factor", "long_factor", "attention_factor"}),
    "llama3": frozenset({"low_freq_factor", "high_freq_factor"}),
    "clex": frozenset({"start", "declared"}),
    "self_extend": frozenset({"window", "group", "temperature"}),
    "log_n": frozenset(),
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
    kind = positions.kind
    if method is None:
        method = _DEFAULTS[kind]
        if kind == "rotary" and any(_refuses_default(body) for body in positions.bodies):
            method = "ntk"
    if method not in _METHODS[kind]:
        allowed = ", ".join(map(repr, _METHODS[kind]))
        raise ExtendError(f"method is {method!r}; {name} has {DESCRIPTIONS[kind]}, which allow {allowed}")
    valid = _option_names(kind, method)
    if unknown := sorted(options.keys() - valid):
        raise ExtendError(
            f"method {method!r} has no option {unknown[0]!r}; valid: {', '.join(sorted(valid)) or 'none'}"
        )
    if method in {*INSTALLED, *PLAIN} and positions.unread_bodies:
        body = type(positions.unread_bodies[0]).__name__
        raise ExtendError(f"{name} has a {body} that reads no text; extend the part that reads texts")
    return method


def _refuses_default(body: PreTrainedModel) -> bool:
    twice = 2 * int(body.config.max_position_embeddings)
    return rotary.refusal(body, _DEFAULTS["rotary"], twice, {}) is not None


def _option_names(kind: Kind, method: str) -> frozenset[str]:
    if kind == "rotary":
        return _ROTARY_OPTIONS[method]
    return {
        "table": frozenset({"special"}),
        "bias": frozenset({"trained"}),
    }.get(kind, frozenset[str]())
