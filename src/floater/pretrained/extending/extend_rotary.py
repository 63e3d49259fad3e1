"""Extension of rotary positions, by the configuration or by a method of this library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from floater.pretrained.extending import attention, clex, rotary
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import Extension, check_longer
from floater.pretrained.extending.install import PLAIN, follows_length, install
from floater.pretrained.extending.methods import INSTALLED
from floater.pretrained.flows import is_count


def extend_rotary(
    model: Any, bodies: list[PreTrainedModel], length: int, method: str, options: dict[str, Any]
) -> Extension:
    """Rescale the rotary positions of a model.

    Args:
        model: model that contains the bodies; changed in place.
        bodies: rotary bodies.
        length: number of tokens to support.
        method: name of the method.
        options: options of the method.

    Returns:
        A summary of the extension.

    Raises:
        ExtendError: if the length or an option is not valid, or a body does not take the method.
    """
    old = max(int(body.config.max_position_embeddings) for body in bodies)
    check_longer(length, old)
    for body in bodies:
        _check_body(body, length, method, options)
    settings = {"method": method, "old": old, "new": length, **_settings(method, old, length, options)}
    if method in INSTALLED:
        install(model, settings)
        for body in bodies:
            body.config.max_position_embeddings = length
    else:
        for body in bodies:
            rotary.scale(body.config, method, length, options)
            rotary.rebuild(body, changed=method not in ("dynamic", "longrope"))
        if method in PLAIN:
            install(model, settings)
    forbids_cache, by_longest = _varies(settings, bodies)
    if forbids_cache:
        for body in bodies:
            body.config.use_cache = False
        if (generation := getattr(model, "generation_config", None)) is not None:
            generation.use_cache = False
    unchanged = method in ("self_extend", "log_n") or follows_length(settings)
    return Extension(method, "rotary", old, length, unchanged, by_longest=by_longest)


def _check_body(body: nn.Module, length: int, method: str, options: dict[str, Any]) -> None:
    """Refuse a body that is scaled already, or does not take a method or its options."""
    config: Any = body.config
    rope = rotary.parameters(config)
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ExtendError(
            f"the rotary positions of {type(body).__name__} are scaled already ('{kind}'); extend the "
            "model without its scaling"
        )
    width = rotary.rotated(config, rope)
    if method in ("clex", "dynamic", "ntk") and (width < 4 or width % 2):
        raise ExtendError(
            f"{type(body).__name__} rotates {width} components; {method!r} needs 4, 6, 8 or more"
        )
    if method in INSTALLED:
        return
    rotary.check_options(method, options, width // 2)
    if reason := rotary.refusal(body, method, length, options):
        raise ExtendError(f"{type(body).__name__} does not take {method!r}: {reason}")


def _settings(method: str, old: int, length: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked options of a method that `install` records, with defaults for missing ones."""
    if method == "clex":
        start, declared = options.get("start", "yarn"), options.get("declared", True)
        if start not in clex.SCALINGS:
            raise ExtendError(f"start is {start!r}; it must be one of {', '.join(map(repr, clex.SCALINGS))}")
        if not isinstance(declared, bool):
            raise ExtendError(f"declared is {declared!r}; it must be True or False")
        return {"start": start, "declared": declared}
    if method == "dynamic":
        return {"declared": options.get("declared", True)}
    if method == "log_n":
        return {"temperature": True}
    if method != "self_extend":
        return {}
    window = options.get("window", max(1, old // 4))
    if not is_count(window) or window >= old:
        raise ExtendError(f"window is {window!r}; it must be a whole number from 1 to {old - 1}")
    least = attention.groups(length, old, window)
    group = options.get("group", least)
    if not is_count(group) or group < least:
        raise ExtendError(
            f"group is {group!r}; with window={window} it must be a whole number of at least {least}, so "
            f"that a text of {length} tokens has no distance above {old}"
        )
    temperature = options.get("temperature", False)
    if not isinstance(temperature, bool):
        raise ExtendError(f"temperature is {temperature!r}; it must be True or False")
    return {"group": [window, group], "temperature": temperature}


def _varies(settings: dict[str, Any], bodies: list[PreTrainedModel]) -> tuple[bool, bool]:
    """Return whether generation must not use a cache, and whether rotations depend on the longest text."""
    if settings["method"] != "longrope":
        return (follows_length(settings),) * 2
    ropes = [(body.config.model_type, rotary.parameters(body.config)) for body in bodies]
    varying = [kind for kind, rope in ropes if rope["short_factor"] != rope["long_factor"]]
    # Phi-3's generation resets its cache when the factors change
    return any(kind != "phi3" for kind in varying), bool(varying)
