"""State of a plugged model: the changes that `unplug` reverts, its flows or clocks, and its options."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from floater.pretrained.adapters import active
from floater.pretrained.body import Body, Injection
from floater.pretrained.clocks import Clocks, Turn
from floater.pretrained.families import PlugError
from floater.pretrained.flows import Flows
from floater.pretrained.forward import Forward, observers
from floater.pretrained.host import part_at

GUARD = "floater: this model has a FLOATER flow; import floater before the model is loaded"
"""Entry of a plugged model's `fusion_config`; see `floater.pretrained.loading`."""


@dataclass
class PlugState:
    """The changes that `plug` made to a model, for `unplug`.

    Args:
        options: arguments of `plug` by name, as plain values.
        injections: each projection with its injection.
        turns: each attention module with a clock, by its name.
        forwards: functions of the bodies' forward passes, with the observer of each.
        frozen: parameters that were trainable before.
        origin: `name_or_path` of the model before it was plugged.
    """

    options: dict[str, Any]
    injections: list[tuple[nn.Module, Injection]] = field(default_factory=list)
    turns: dict[str, nn.Module] = field(default_factory=dict)
    forwards: list[tuple[Forward, Body]] = field(default_factory=list)
    frozen: list[nn.Parameter] = field(default_factory=list)
    origin: str | None = None


def plugged(model: nn.Module) -> PlugState | None:
    """Return the record of `plug` for a model; None if it is not plugged.

    Raises:
        PlugError: if it is not a module, but for example the name of a checkpoint.
    """
    if not isinstance(model, nn.Module):
        raise PlugError(f"the model is a {type(model).__name__}; it must be a model of transformers")
    state: PlugState | None = model.__dict__.get("_floater_plug")
    return state


def plug_state(model: nn.Module) -> PlugState:
    """Return the record of `plug` for a model.

    Raises:
        PlugError: if the model is not plugged.

    Example:
        >>> plug_state(nn.Identity())
        Traceback (most recent call last):
        floater.pretrained.families.PlugError: this Identity is not plugged; plug it first
    """
    state = plugged(model)
    if state is None:
        raise PlugError(f"this {type(model).__name__} is not plugged; plug it first")
    return state


def plugged_around(model: nn.Module) -> nn.Module | None:
    """Return the plugged model that has the flow of a model's body and is not in the model; None if none."""
    parts = {*model.modules()}
    added = [each for part in parts for each in (*observers(part), *part._forward_pre_hooks.values())]
    roots = (each.root for each in added if isinstance(each, Body | Turn))
    return next((root for root in roots if root not in parts), None)


def unhook(module: nn.Module) -> None:
    """Remove the hooks of a flow or a clock from a module, also from a copy, which no handle leads to."""
    for key, hook in [*module._forward_hooks.items(), *module._forward_pre_hooks.items()]:
        if isinstance(hook, Injection | Turn):
            module._forward_hooks.pop(key, None)
            module._forward_pre_hooks.pop(key, None)
            module._forward_pre_hooks_with_kwargs.pop(key, None)


def check_blocks(model: nn.Module) -> None:
    """Refuse a plugged model that has fewer blocks than when it was plugged.

    Raises:
        PlugError: if it has: its files could not be loaded, as their flow is that of all blocks.
    """
    state = plug_state(model)
    paths = [f"{body.path}.{injection.path}" for _, body in state.forwards for injection in body.injections]
    if any(part_at(model, path.strip(".")) is None for path in (*paths, *state.turns)):
        raise PlugError(
            f"this {type(model).__name__} has fewer blocks than when it was plugged, and the files of its "
            "flow could not be loaded; remove blocks first and plug the model then"
        )


def flows_of(model: nn.Module) -> Flows:
    """Return the flows of a plugged model.

    Raises:
        PlugError: if it has clocks.
    """
    part = trained_part(model)
    if isinstance(part, Clocks):
        raise PlugError(
            f"this {type(model).__name__} has a clock, whose times depend on the text: there is no vector of "
            "a position to bake or to show"
        )
    return part


def trained_part(model: nn.Module) -> Flows | Clocks:
    """Return the flows or the clocks of a plugged model."""
    trained: Flows | Clocks = active(model.floater)
    return trained


def record(model: nn.Module, options: dict[str, Any] | None) -> None:
    """Record the options of `plug` in a copy of the model's configuration, as models may share the original.

    Args:
        model: model that gets the copy of its configuration.
        options: arguments of `plug` by name, and `baked`; None if the model is not plugged.
    """
    config = getattr(model, "config", None)
    if config is None:
        return
    copied = copy.copy(config)
    for module in model.modules():
        if module.__dict__.get("config") is config:
            module.config = copied
    fusions = dict(getattr(copied, "fusion_config", None) or {})
    fusions.pop(GUARD, None)
    for name in ("floater", "fusion_config"):
        copied.__dict__.pop(name, None)
    if options is not None:
        copied.floater = options
        fusions[GUARD] = True
    if fusions:
        copied.fusion_config = fusions
