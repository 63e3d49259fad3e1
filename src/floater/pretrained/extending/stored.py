"""Rotary frequencies that are weights, as those of ESM-2: the files of a model hold them."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from floater.encodings.relative.rescaling import rescaled
from floater.encodings.relative.waves import frequencies
from floater.pretrained.extending import rotary
from floater.pretrained.extending.errors import ExtendError

METHODS = ("ntk", "linear", "dynamic", "llama3")
"""Methods that change frequencies alone: the temperature of YaRN and LongRoPE is not a weight."""


def stores_frequencies(body: nn.Module) -> bool:
    """Return whether the frequencies of a body are weights, and its configuration has no rule for them."""
    config: Any = body.config
    if isinstance(getattr(config, "rope_parameters", None), dict) or not hasattr(config, "rope_theta"):
        return False
    return set(rotary.frequencies(body)) <= body.state_dict().keys()


def rescale(body: PreTrainedModel, method: str, length: int, options: dict[str, Any]) -> None:
    """Rescale the frequencies that a body stores, and write the length into its configuration.

    Args:
        body: a body that `stores_frequencies`; changed in place.
        method: one of METHODS.
        length: number of tokens to support.
        options: options of the method.

    Raises:
        ExtendError: if an option is not valid, or "dynamic" is to follow the length of each text.
    """
    config: Any = body.config
    if not options.get("declared", True):
        raise ExtendError(f"{type(body).__name__} stores its frequencies: 'dynamic' must be declared")
    names, old = rotary.frequencies(body), int(config.max_position_embeddings)
    dim, base, factor = 2 * len(body.get_buffer(names[0])), float(config.rope_theta), length / old
    rotary.check_options(method, options, dim // 2, body)
    if method in ("ntk", "dynamic") and dim < 4:
        raise ExtendError(f"{type(body).__name__} rotates {dim} components; {method!r} needs 4 or more")
    if method in ("ntk", "dynamic"):
        config.rope_theta = rotary.stretched_base(base, factor, dim, method)
        scaled = frequencies(dim, config.rope_theta)
    else:
        rule = rotary.LLAMA3 | options if method == "llama3" else options
        scaled, _ = rescaled(dim, base, old, {"rope_type": method, "factor": factor, **rule})
    ratio = scaled / frequencies(dim, base)
    for name in names:
        holder, _, attribute = name.rpartition(".")
        stored = body.get_buffer(name)
        setattr(body.get_submodule(holder), attribute, (stored.double() * ratio.to(stored.device)).to(stored))
    config.max_position_embeddings = length
