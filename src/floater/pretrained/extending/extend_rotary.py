"""Extension of rotary positions, by the configuration or by a method of this library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from floater.flow.checks import is_count
from floater.pretrained.clocks import has_clocks
from floater.pretrained.extending import attention, clex, native, rotary, stored
from floater.pretrained.extending.dry_run import DryRun
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import Extension, check_longer
from floater.pretrained.extending.install import PLAIN, WEIGHTLESS, follows_length, install
from floater.pretrained.extending.methods import INSTALLED
from floater.pretrained.extending.pairs import check_calls, rotates_halves


def extend_rotary(
    model: Any,
    bodies: list[PreTrainedModel],
    dry_run: DryRun,
    length: int,
    method: str,
    options: dict[str, Any],
) -> Extension:
    """Rescale the rotary positions of a model.

    Args:
        model: model that contains the bodies; changed in place.
        bodies: rotary bodies.
        dry_run: dry run of the model's configuration.
        length: number of tokens to support.
        method: name of the method.
        options: options of the method.

    Returns:
        A summary of the extension.

    Raises:
        ExtendError: if the length or an option is not valid, or a body does not take the method.
    """
    if all(map(stored.stores_frequencies, bodies)):
        old = max(int(body.config.max_position_embeddings) for body in bodies)
        check_longer(length, old)
        for body in bodies:
            stored.rescale(body, method, length, options)
        return Extension(method, "rotary", old, length, False)
    old = max(native.supported(body.config) for body in bodies)
    check_longer(length, old)
    settings = {"method": method, "old": old, "new": length, **_settings(method, old, length, options)}
    if method == native.scaling(bodies[0].config):
        for body in bodies:
            native.widen(body.config, length)
            rotary.rebuild(body, changed=method != "longrope")
        rotary.rebuild_elsewhere(model, bodies)
        return _finish(model, bodies, settings, unchanged=False)
    for body in bodies:
        _check_body(body, length, method, options)
    if method == "clex" and has_clocks(model):
        raise ExtendError(
            f"this {type(model).__name__} has a clock, which turns a rotation of fixed frequencies; 'clex' "
            "computes them in each pass"
        )
    if method in INSTALLED:
        if others := rotary.parts_elsewhere(model, bodies):
            raise ExtendError(
                f"'{others[0]}' of {type(model).__name__} rotates by the same configuration as "
                f"{type(bodies[0]).__name__}; {method!r} cannot change it, use a method of the configuration"
            )
        if method in WEIGHTLESS:
            settings |= _pairs(model, bodies, dry_run, settings)
        install(model, settings)
        for body in bodies:
            native.state_factor(body.config)
            body.config.max_position_embeddings = length
    else:
        for body in bodies:
            rotary.scale(body.config, method, length, options)
            rotary.rebuild(body, changed=method not in ("dynamic", "longrope"))
        rotary.rebuild_elsewhere(model, bodies)
    unchanged = method in WEIGHTLESS or follows_length(settings)
    return _finish(model, bodies, settings, unchanged=unchanged)


def _finish(
    model: Any, bodies: list[PreTrainedModel], settings: dict[str, Any], *, unchanged: bool
) -> Extension:
    """Record an extension that only the settings show, turn off the cache if it must be, and summarise."""
    method, moving = settings["method"], bodies if follows_length(settings) else []
    if method in PLAIN:
        install(model, settings)
    if method == "longrope":
        ropes = [(body, native.parameters(body.config)) for body in bodies]
        moving = [body for body, rope in ropes if rope["short_factor"] != rope["long_factor"]]
    # Phi-3's generation resets its cache when the factors change
    if any(body.config.model_type != "phi3" or follows_length(settings) for body in moving):
        for body in bodies:
            body.config.use_cache = False
        if (generation := getattr(model, "generation_config", None)) is not None:
            generation.use_cache = False
    old, new = settings["old"], settings["new"]
    return Extension(method, "rotary", old, new, unchanged, by_longest=bool(moving))


def _pairs(
    model: nn.Module, bodies: list[PreTrainedModel], dry_run: DryRun, settings: Mapping[str, Any]
) -> dict[str, bool]:
    """Return the settings that say how the bodies rotate; refuse attention that a method cannot replace."""
    method, halves = settings["method"], set()
    for path, body in model.named_modules():
        if body in bodies:
            check_calls(body, path, dry_run, method)
            if method == "self_extend":
                halves.add(rotates_halves(body, path, dry_run, settings["old"]))
    if len(halves) > 1:
        raise ExtendError(f"bodies of {type(model).__name__} rotate other components together; extend one")
    return {"halves": halves.pop()} if halves else {}


def _check_body(body: nn.Module, length: int, method: str, options: dict[str, Any]) -> None:
    """Refuse a body that does not take a method or its options."""
    config: Any = body.config
    width = rotary.rotated(config, native.parameters(config))
    if method in ("clex", "dynamic", "ntk") and (width < 4 or width % 2):
        raise ExtendError(
            f"{type(body).__name__} rotates {width} components; {method!r} needs 4, 6, 8 or more"
        )
    if method not in INSTALLED:
        rotary.check_options(method, options, width // 2, body)
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
