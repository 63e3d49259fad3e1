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

_OPTIONS: Mapping[Kind, Mapping[str, frozenset[str]]] = {
    "table": dict.fromkeys(continuation.METHODS, frozenset({"special"})),
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
    kind = positions.kind
    if method is None:
        method = _DEFAULTS[kind]
        if kind == "rotary" and any(_refuses_default(body) for body in positions.bodies):
            method = "ntk"
    if method not in _OPTIONS[kind]:
        allowed = ", ".join(map(repr, _OPTIONS[kind]))
        raise ExtendError(f"method is {method!r}; {name} has {DESCRIPTIONS[kind]}, which allow {allowed}")
    valid = _OPTIONS[kind][method]
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
