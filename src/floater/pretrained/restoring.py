"""Restoration of the flow and the extension of a model that Transformers has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from floater.pretrained.extending.install import KEY, check, extension_settings, install
from floater.pretrained.families import PlugError
from floater.pretrained.files import read_config, read_weights
from floater.pretrained.plugged import plugged, record
from floater.pretrained.saving import fill
from floater.transformer.alignment import align

_FLOW, _EXTENSION = "floater.", f"{KEY}."


def restore(model: Any, info: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plug or extend a loaded model as it was when it was saved.

    Args:
        model: model as Transformers loaded it.
        info: report of Transformers on the weights.
        arguments: arguments of `from_pretrained`.

    Returns:
        The report without the weights of the flow and the extension.

    Raises:
        PlugError: if the flow or the extension cannot be restored.
    """
    origin = str(getattr(model, "name_or_path", None) or "the weights")
    unread: set[str] = {*info["unexpected_keys"]}
    if missing := [name for name in info.get("missing_keys", ()) if {"floater", KEY} & {*name.split(".")}]:
        raise PlugError(
            f"{origin} lacks {min(missing)}, a weight of the flow or extension that the configuration of a "
            "part has"
        )
    extension_names = {name for name in unread if name.startswith(_EXTENSION)}
    flow_names = {name for name in unread if name.startswith(_FLOW)}
    inner_names = {name for name in unread if f".{_FLOW}" in name}
    if (settings := missing_extension(model)) is not None:
        install(model, settings)
        weights: Any = getattr(model, KEY, None)
        if weights is not None:
            _fill_extension(weights, read_weights(origin, arguments, _EXTENSION), origin)
        unread -= extension_names
    elif extension_settings(model) is None and (
        extension_names or ("config" in arguments and KEY in read_config(origin, arguments))
    ):
        raise PlugError(
            f"{origin} holds an extended model, but the configuration that was given does not say how: use "
            f"that of the folder, or copy its '{KEY}'"
        )
    if (options := missing_flow(model)) is not None:
        record(model, None)
        saved = {"model_type": model.config.model_type, "plug": options}
        fill(model, saved, read_weights(origin, arguments, _FLOW), origin)
        align(model)
        model.name_or_path = origin  # plugging sets UNSAVED, but the directory contains the plugged model
        unread -= flow_names
    elif plugged(model) is None:
        inner_names |= flow_names
    if inner_names:
        raise PlugError(
            f"{origin} has a flow, {min(inner_names)}, that {type(model).__name__} has no place for: its "
            "configuration does not say how it is plugged; load the model that the flow belongs to, plug "
            "it (floater.plug) and give it these weights"
        )
    return {**info, "unexpected_keys": unread}


def missing_extension(model: Any) -> dict[str, Any] | None:
    """Return the extension in a model's configuration; None if there is none or the model has it already.

    Raises:
        ExtendError: if the configuration has settings that `install` has not written.
    """
    settings = getattr(getattr(model, "config", None), KEY, None)
    if extension_settings(model) is not None or settings is None:
        return None
    check(settings)
    return dict(settings)


def missing_flow(model: Any) -> dict[str, Any] | None:
    """Return the options of `plug` in a model's configuration; None if there are none or it is plugged.

    Raises:
        PlugError: if the configuration has something else in their place.
    """
    options = getattr(getattr(model, "config", None), "floater", None)
    if plugged(model) is not None or options is None:
        return None
    if not isinstance(options, Mapping):
        raise PlugError(f"'floater' in the configuration is {options!r}; it must be the options of a flow")
    return dict(options)


def _fill_extension(module: Any, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load the weights of an extension, if they have the names and shapes of the module."""
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name, shape in shapes.items():  # only the model's own parts: an encoder alone has no decoder
        saved = tuple(weights[name].shape) if name in weights else "missing"
        if saved != shape:
            raise PlugError(
                f"{origin} does not hold the weights of its extension: '{_EXTENSION}{name}' is "
                f"{saved} there and {shape} here"
            )
    module.load_state_dict({name: weights[name] for name in shapes})
