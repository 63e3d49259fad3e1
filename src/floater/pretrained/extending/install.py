"""Extensions for which Transformers has no configuration: installation and record in the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import lt
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from floater.encodings.relative.floater_relative import FloaterRelative
from floater.encodings.sharded import gather_weights, whole_gradient
from floater.flow.checks import is_count
from floater.pretrained.adapters import active
from floater.pretrained.extending import attention, biases, clex, native, rotary
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.pairs import attention_modules
from floater.pretrained.extending.tables import find_tables
from floater.pretrained.extending.transaction import copy_configs
from floater.pretrained.extending.watch import Watch
from floater.pretrained.flows import refresh
from floater.pretrained.host import allow_to_run, copy_or_share, device_of, keep_weights

KEY = "floater_extension"
"""Attribute of a model's configuration with the settings of `install`, and of the model with its weights."""

NOTE = "position_extension"
"""Attribute of the configuration of an exported model with the method and the lengths of its extension, where
its rotary parameters do not say them. No program but this library reads it."""

GUARD = "floater: the positions of this model are extended; import floater before the model is loaded"
"""Entry of `fusion_config` by which Transformers alone refuses a model; see `floater.pretrained.loading`."""

PLAIN = frozenset({"clipped", "dropped", "dynamic", "longrope", "ntk"})
"""Methods that Transformers computes without this library. Two of them refuse cached keys if their rotation
depends on the length; otherwise only this record in the configuration shows that it is scaled already."""

WEIGHTLESS = frozenset({"self_extend", "log_n"})
"""Methods without parameters, which are computed in attention."""

_FIELDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    **{method: {} for method in ("flow", *PLAIN)},
    "dynamic": {"declared": lambda x: isinstance(x, bool)},
    "clex": {"start": lambda x: x in clex.SCALINGS, "declared": lambda x: isinstance(x, bool)},
    "log_n": {"temperature": lambda x: x is True},
    "self_extend": {
        "group": lambda x: isinstance(x, list | tuple) and len(x) == 2 and all(map(is_count, x)),
        "halves": lambda x: isinstance(x, bool),
        "temperature": lambda x: isinstance(x, bool),
    },
}
"""Fields of the settings of each method beside its lengths, with whether a value is valid."""


def extension_settings(model: nn.Module) -> dict[str, Any] | None:
    """Return the settings of `install` for a model; None if it was not extended by it."""
    settings: dict[str, Any] | None = model.__dict__.get("_floater_extension")
    return settings


def recorded(model: nn.Module) -> str | None:
    """Return the method by which the configurations of a model say that it was extended; None if none does.

    Args:
        model: model, loaded with this library or without it, or one that was exported.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    for config in [getattr(part, "config", None) for part in (model, *parts)]:
        for name in (KEY, NOTE):
            if (settings := getattr(config, name, None)) is not None:
                return str(settings.get("method") if isinstance(settings, Mapping) else settings)
    return None


def extended_around(model: nn.Module) -> nn.Module | None:
    """Return the extended model around a part of a model, unless the model has it, too; None if none."""
    parts = {*model.modules()}
    wholes = (part.__dict__.get("_floater_whole") for part in parts)
    return next((whole for whole in wholes if whole is not None and whole not in parts), None)


def has_rules(model: nn.Module, method: object) -> bool:
    """Return whether the attention modules of a model have the rules that a method needs, if it needs any."""
    if method not in [*WEIGHTLESS]:
        return True
    return any("floater_rule" in module.__dict__ for module in model.modules())


def follows_length(settings: Mapping[str, Any]) -> bool:
    """Return whether the rotation depends on the length of the text, by the settings of `install`."""
    return settings["method"] in ("clex", "dynamic") and not settings.get("declared", False)


def training_spans(model: nn.Module, length: int) -> list[int]:
    """Return the lengths in tokens of the texts of a training batch, which are equally frequent.

    If the rotation of the model depends on the length of the text, they are all multiples of the training
    length below `length`, and `length`, so that every scale is trained (Chen et al. 2024, section 3.3). The
    first multiple is excluded if only position parameters are trained, as the flow has no effect at scale 1.
    For other models the only length is `length`.

    Args:
        model: model that is trained.
        length: number of tokens to support.

    Example:
        >>> training_spans(nn.Module(), 1000)
        [1000]
    """
    settings = extension_settings(model)
    if settings is None or not follows_length(settings):
        return [length]
    positions = {*map(id, trained_positions(model))}
    others = any(p.requires_grad and id(p) not in positions for p in model.parameters())
    old = settings["old"]
    return [*range(old * (1 if others else 2), length, old), length]


def check(settings: Any) -> None:
    """Refuse settings that `install` has not written.

    Args:
        settings: value of KEY in a configuration.

    Raises:
        ExtendError: if an entry is missing, unknown or not valid.

    Example:
        >>> check({"method": "log_n", "old": 8, "new": 16, "temperature": True})
        >>> check({"method": "dynamic", "old": 8, "new": 16})
    """
    where = f"'{KEY}' in the configuration"
    method = settings.get("method") if isinstance(settings, Mapping) else None
    if not isinstance(method, str) or method not in _FIELDS:
        raise ExtendError(f"{where} is {settings!r}; it names no method of an extension")
    if method == "dynamic":  # saved before "declared" was an option, it followed the length of the text
        settings = {"declared": False, **settings}
    if settings.keys() != {"method", "old", "new", *_FIELDS[method]}:
        raise ExtendError(f"{where} has {', '.join(map(str, settings))}, not the fields of {method!r}")
    old, new = settings["old"], settings["new"]
    if not (is_count(old) and is_count(new) and old < new):
        raise ExtendError(f"{where} has old={old!r}, new={new!r}")
    for name, valid in _FIELDS[method].items():
        if not valid(settings[name]):
            raise ExtendError(f"{where} has {name}={settings[name]!r}")
    if method == "self_extend" and settings["group"][0] >= old:
        raise ExtendError(f"{where} has group={settings['group']!r} at old={old}")


def install(model: Any, settings: Mapping[str, Any]) -> list[tuple[FloaterRelative, biases.Bias]]:
    """Install an extension with initial weights in a model, and record it in the configuration.

    Args:
        model: model without such an extension; changed in place.
        settings: `method`, `old` and `new` lengths in tokens, and the options of the method.

    Returns:
        The flows that continue biases, not fitted yet, with the trained biases.

    Raises:
        ExtendError: if the model's positions do not allow the method.
    """
    settings, parts, fits = dict(settings), dict[str, nn.Module](), []
    changed: list[Any] = []
    if settings["method"] == "flow":
        changed = biases.biased_parts(model)
        for part in changed:
            heads, causal = biases.heads_and_causality(part)
            # names do not depend on the head of the model; UMT5 has a bias in each block
            side = "past" if causal else "both"
            count = sum(name.startswith(side) for name in parts)
            name = f"{side}_{count}" if count else side
            flow = parts[name] = biases.new_flow(heads, settings["new"], causal)
            flow.to(device_of(model))
            fits.append((flow, biases.attach_flow(part, _Part(model, part, name), settings["old"])))
    elif settings["method"] in WEIGHTLESS:
        _install_attention(model, settings)
    else:
        changed = rotary.rotary_bodies(model)
        for body in changed:
            _install_scale(model, body, settings, parts)
    if parts:
        weights = nn.Module()  # PEFT's modules_to_save takes no ModuleDict
        for name, module in parts.items():
            weights.add_module(name, module)
        weights.register_state_dict_pre_hook(refresh)  # type: ignore[no-untyped-call]
        keep_weights(weights)
        setattr(model, KEY, weights.train(model.training))
        for part in model.modules():
            inside = isinstance(part, PreTrainedModel) and part is not model and set(part.modules())
            if inside and not inside.isdisjoint(changed):
                part.__dict__["_floater_whole"] = model
    model.__dict__["_floater_extension"] = settings
    copy_configs(model)
    setattr(model.config, KEY, settings)
    if settings["method"] not in PLAIN:
        model.config.fusion_config = {**(getattr(model.config, "fusion_config", None) or {}), GUARD: True}
    allow_to_run(model)
    return fits


def _install_scale(
    model: nn.Module, body: PreTrainedModel, settings: Mapping[str, Any], parts: dict[str, nn.Module]
) -> None:
    old, new, method = settings["old"], settings["new"], settings["method"]
    if method in ("clipped", "dropped", "ntk") or (method == "dynamic" and not follows_length(settings)):
        return
    if method == "dynamic":  # the rotation changes with each token beyond the training length
        Watch(body, method, scale=partial(max, old))
    elif method == "longrope":
        rope = native.parameters(body.config)
        if rope["short_factor"] != rope["long_factor"]:
            Watch(body, method, scale=partial(lt, old))
    else:
        rope = native.parameters(body.config)
        width, base = rotary.rotated(body.config, rope), rope["rope_theta"]
        flow = clex.ScaleFlow(width, base, old, settings["start"]).to(device_of(model))
        part = f"scale_{len(parts)}"
        parts[part] = flow
        rule = partial(clex.scale_of, trained=old, factor=new / old, declared=settings["declared"])
        watch = Watch(body, method, scale=rule, learned=True)
        for name in rotary.rotary_parts(body):
            scaled = clex.ScaledRotary(
                body.get_submodule(name),
                _Part(model, body, part),
                watch,
                native.layer_kind(body.config),
                partial(whole_gradient, model=body),
            )
            body.set_submodule(name, scaled)


class _Part:
    """A reference from a module to a part of the extension of the model around it.

    Args:
        model: extended model.
        user: module in it that needs the part.
        name: name of the part.
    """

    def __init__(self, model: nn.Module, user: nn.Module, name: str) -> None:
        self.model, self.name = model, name
        self.path = next(path for path, module in model.named_modules() if module is user)

    def __call__(self) -> Any:
        """Return the part; if PEFT keeps a copy of the extension for the active adapter, the copy's.

        Raises:
            PositionError: if its weights are not on this process; see `gather_weights`.
        """
        extension = active(getattr(self.model, KEY))
        gather_weights(extension)
        return getattr(extension, self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Part:
        return copy_or_share(self, self.model, self.path, memo)


def _install_attention(model: Any, settings: Mapping[str, Any]) -> None:
    method, old = settings["method"], settings["old"]
    originals = {}
    for body in rotary.rotary_bodies(model):
        before = _attention_function(body, method)
        Watch(body, method, attention=attention.NAMES, grouped="group" in settings)
        originals[body] = before
    for body, before in originals.items():
        holder, _, frequencies = rotary.frequencies(body)[0].rpartition(".")
        rule = attention.Rule(
            tuple(settings["group"]) if "group" in settings else None,
            old,
            settings["temperature"],
            body.get_submodule(holder),
            frequencies,
            settings.get("halves", True),
        )
        for module in attention_modules(body).values():
            module.__dict__["floater_rule"] = rule
            module.__dict__["floater_grouped"] = attention.grouped_layer(module, body.config, old)
            module.config._attn_implementation = attention.NAMES[before]  # a copied layer has its own
        body.set_attn_implementation(attention.NAMES[before])


def _attention_function(body: Any, method: str) -> str:
    """Return the attention function that a body has, or had before it was extended: "eager" or "sdpa".

    Raises:
        ExtendError: if it is another one, whose kernels take no mask with the visible keys of each query.
    """
    implementation = body.config._attn_implementation or "sdpa"
    for plain, extended in attention.NAMES.items():
        if implementation in (plain, extended):
            return plain
    raise ExtendError(
        f"{type(body).__name__} has the attention function {implementation!r}; {method!r} is computed by "
        "'eager' or 'sdpa': choose one by attn_implementation or set_attn_implementation"
    )


def trained_positions(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model's positions: of its extension, of its flow, and learned tables.

    Args:
        model: any model, extended or plugged or not.
    """
    parts = [getattr(model, name) for name in (KEY, "floater") if hasattr(model, name)]
    tables = [getattr(table.holder, table.name) for table in find_tables(model)]
    modules = [part for part in (*parts, *tables) if isinstance(part, nn.Module)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    return list(dict.fromkeys([*parameters, *(table for table in tables if isinstance(table, nn.Parameter))]))
