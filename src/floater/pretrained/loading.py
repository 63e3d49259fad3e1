"""Wrappers of Transformers' methods that load and save models, which include the flow or the extension.

A flow is part of a model like its head: without it, the weights compute something else. `save_pretrained`
writes it, but Transformers builds a model by the class in its configuration, which has no parameters for the
flow, and ignores the flow's weights with a note. Therefore `floater.autoload` replaces methods that all
models of Transformers share by the functions of this module.

Extensions for which Transformers has no configuration (`floater.pretrained.extending`) are handled in the
same way.

If this library is not imported, Transformers must not load such a directory. The configuration lists GUARD
among the fusions of modules that the model needs, which every class of Transformers refuses before it reads
any weights. `floater.guard` replaces names in `config.json` for readers that ignore that entry.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor, nn

from floater.pretrained.card import write_card
from floater.pretrained.clocks import has_clocks
from floater.pretrained.extending import native
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.install import GUARD as EXTENSION_GUARD
from floater.pretrained.extending.install import (
    KEY,
    PLAIN,
    extended_around,
    extension_settings,
    has_rules,
    install,
)
from floater.pretrained.extending.watch import Watch
from floater.pretrained.families import PlugError
from floater.pretrained.files import read_config
from floater.pretrained.forward import observe, observers
from floater.pretrained.host import UNSAVED, Refusal, inner
from floater.pretrained.parts import describing_parts, is_changed, needs_library
from floater.pretrained.plug import bake, plug
from floater.pretrained.plugged import GUARD, check_blocks, plugged, plugged_around
from floater.pretrained.restoring import missing_extension, missing_flow, restore
from floater.pretrained.saving import check_same, readable
from floater.pretrained.weight_names import rename_weights
from floater.transformer.base import FloaterPreTrainedModel

_lock = threading.RLock()
_first: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By the id of a configuration with a flow: the first model of those that are being built from it."""


def load_model(original: Callable[..., Any], kind: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a model as `original` does, and plug it if it was saved plugged.

    Every Auto class, every pipeline and the libraries above them call `from_pretrained`.

    Args:
        original: method of Transformers, as a function whose first argument is the class.
        kind: class of the model.
        *args: positional arguments of the method.
        **kwargs: keyword arguments of the method.

    Raises:
        PlugError: if the flow cannot be read.
    """
    with_info = kwargs.pop("output_loading_info", False)
    guarded = False
    try:
        model, info = original(kind, *args, output_loading_info=True, **kwargs)
    except ValueError as error:
        if not any(guard in str(error) for guard in (GUARD, EXTENSION_GUARD)):
            raise
        guarded = True
        kwargs["fusion_config"] = {}  # the flow or extension that the guard requires is added below
        with _expecting_flow(kind):
            model, info = original(kind, *args, output_loading_info=True, **kwargs)
    with readable(model.name_or_path):
        info = restore(model, info, kwargs)
    if guarded and not is_changed(model):
        raise PlugError(
            f"the configuration in {model.name_or_path} requires a flow or an extension and does not say "
            f"which: restore its 'floater' or '{KEY}'; if a part of the {type(model).__name__} was extended "
            "apart, extend the whole model before it is saved, or put the part's configuration into that of "
            "the whole"
        )
    return (model, info) if with_info else model


def build_model(original: Callable[..., Any], kind: Any, config: Any, **kwargs: Any) -> Any:
    """Make a model as `original` does, and extend and plug it if its configuration describes it so.

    Some heads of Transformers build their body by this method from their own configuration: the whole gets
    the flow, so the body does not.
    """
    is_body = _is_building(config)
    model = original(kind, config, **kwargs)
    if is_body:
        return model
    if (settings := missing_extension(model)) is not None:
        install(model, settings)
    if (options := missing_flow(model)) is not None:
        length = options.pop("baked")
        plug(model, **options)
        if length is not None:
            bake(model, length)
    return model


def initialize(original: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    """Let a model that is built from a configuration with a flow refuse to run without the flow."""
    original(model, *args, **kwargs)
    if not _is_building(model.config):
        _first[id(model.config)] = model
    settings = getattr(model.config, KEY, None)
    extended = isinstance(settings, Mapping) and settings.get("method") not in [*PLAIN]
    if extended or isinstance(getattr(model.config, "floater", None), Mapping):
        observe(model, Refusal())


def load_weights(
    original: Callable[..., None],
    model: Any,
    state_dict: dict[str, Tensor],
    prefix: str,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Load weights as `original` does, unless they were trained with a flow or extension that a model lacks.

    A Trainer resumes by it and PEFT reads an adapter. Weights under the names of a file are renamed to those
    of the model in place, as a resuming Trainer does not rename them.

    Args:
        original: method of Transformers, as a function whose first argument is the model.
        model: model that is to load the weights.
        state_dict: weights, changed in place.
        prefix: prefix of their names, empty for the whole model.
        *args: other positional arguments of the method.
        **kwargs: keyword arguments of the method.

    Raises:
        PlugError: if the model has no flow or extension, but the weights, its configuration or its adapter
            require one.
    """
    for part, change in (("floater", "plug"), (KEY, "extend")):
        names = f"{prefix}{part}."
        if not hasattr(model, part) and any(name.startswith(names) for name in state_dict):
            past = {"plug": "plugged", "extend": "extended"}[change]
            raise PlugError(
                f"this {type(model).__name__} is not {past}, and the weights that it is to load have a flow: "
                f"{change} it first as theirs was (floater.{change}), or leave out those that begin with "
                f"'{names}'"
            )
    settings = getattr(getattr(model, "config", None), KEY, None)
    if isinstance(settings, Mapping) and not has_rules(model, settings.get("method")):
        raise PlugError(
            f"{type(model).__name__} is not extended by {settings['method']!r}, as its configuration says: "
            "build it with from_config of its Auto class, or load it with from_pretrained"
        )
    _check_adapters(model)
    if not prefix:
        renamed = rename_weights(model, state_dict)
        state_dict.clear()
        state_dict.update(renamed)
    original(model, state_dict, prefix, *args, **kwargs)


def resume(original: Callable[..., None], trainer: Any, checkpoint: str, *args: Any, **kwargs: Any) -> None:
    """Resume a model as `original` does, if it is plugged and extended as that of the checkpoint.

    Weights alone do not always show the difference.

    Raises:
        PlugError: if the models differ.
    """
    model, config = inner(trainer.model), read_config(checkpoint)
    if (options := config.get("floater")) is not None and (state := plugged(model)) is not None:
        options = {name: options[name] for name in state.options if name in options}
        check_same(options, state.options, checkpoint)
    saved, settings = config.get(KEY), extension_settings(model)
    if saved is not None and saved != json.loads(json.dumps(settings)):
        raise PlugError(
            f"this {type(model).__name__} is not extended as the model in {checkpoint} was: by "
            f"{settings or 'nothing'}, not {saved}; extend it so first (floater.extend)"
        )
    original(trainer, checkpoint, *args, **kwargs)


def load_adapter(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Load an adapter as `original` does, after the flow in the model's configuration.

    `from_pretrained` calls it for the directory of an adapter, before `load_model` sees the model.

    Raises:
        PlugError: if the flow cannot be read, or the adapter was trained with a flow and the model has none.
    """
    hub = getattr(kwargs.get("load_config"), "download_kwargs", {})
    restore(model, {"unexpected_keys": set()}, hub)
    result = original(model, *args, **kwargs)
    _check_adapters(model)
    return result


def save_model(
    original: Callable[..., None], model: Any, save_directory: Any, *args: Any, **kwargs: Any
) -> None:
    """Save a model as `original` does, with the guard and, if Transformers alone refuses it, a model card.

    Raises:
        PlugError: if the model runs with the flow or the extension of a model that contains it, which its
            files would lack; a part of it was plugged or extended that its configuration cannot describe; or
            it has fewer blocks than when it was plugged.
    """
    for whole, what, other in (
        (plugged_around(model), "flow", ", or unplug it first"),
        (extended_around(model), "extension", ""),
    ):
        if whole is not None:
            raise PlugError(
                f"this {type(model).__name__} runs with the {what} of a {type(whole).__name__}, which its "
                f"files would lack: save the {type(whole).__name__}{other}"
            )
    if plugged(model) is not None:
        check_blocks(model)
    with describing_parts(model):
        original(model, save_directory, *args, **kwargs)
    if needs_library(model) and kwargs.get("is_main_process", True):
        write_card(Path(save_directory), model, whole=True)


def batch_continuously(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Begin continuous batching as `original` does, if the outputs for a text do not depend on the others.

    Continuous batching joins the texts of a batch in one row and replaces the attention function.

    Args:
        original: method of a model, or of the manager of its batches.
        *args: positional arguments of the method, with the model or its manager.
        **kwargs: keyword arguments of the method.

    Raises:
        PlugError: if the model reads the positions of each text by itself.
    """
    manager, values = args[0], (*args, *kwargs.values())
    model: Any = next((each for each in values if isinstance(each, nn.Module)), None) or manager.model
    watched = any(isinstance(each, Watch) for part in model.modules() for each in observers(part))
    if watched or has_clocks(model) or isinstance(model, FloaterPreTrainedModel):
        advice = ", or extend by the configuration alone, as 'yarn' does" if watched else ""
        raise PlugError(
            f"this {type(model).__name__} has no continuous batching, which joins texts in a row and "
            f"replaces the attention function: use model.generate{advice}"
        )
    return original(*args, **kwargs)


def load_config(original: Callable[..., Any], kind: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a configuration as `original` does, after the model types of this library are registered."""
    for name in ("documents", "events", "images"):  # they register their types, and that of all models
        import_module(f"floater.transformer.{name}")
    return original(kind, *args, **kwargs)


def _check_adapters(model: Any) -> None:
    """Refuse adapters of PEFT whose base was plugged or extended, if the model is neither or is other."""
    kind, here = type(model).__name__, str(getattr(model, "name_or_path", None))
    for adapter in (getattr(model, "peft_config", None) or {}).values():
        base = adapter.base_model_name_or_path
        if base is None or base == here:
            continue
        how, mine = base.removeprefix(f"{UNSAVED}; "), here.removeprefix(f"{UNSAVED}; ")
        config = {} if how != base else read_config(base)
        if how != base and mine != here:
            raise PlugError(
                f"the adapter's base is {how}, and this {kind} is {mine}; extend it as that model"
            )
        settings = json.loads(json.dumps(extension_settings(model)))
        if settings and config.get(KEY, settings) != settings:
            raise PlugError(
                f"the adapter's base, {base}, is extended by {config[KEY]}, and this {kind} by {settings}; "
                "extend it as that model"
            )
        if (lengths := _shorter(model.config, config)) is not None:
            raise PlugError(
                f"the adapter's base, {base}, rotates for {lengths[0]} tokens, and this {kind} for "
                f"{lengths[1]}, otherwise; load the adapter into that, or extend this as that model was"
            )
        if not is_changed(model) and (base.startswith(UNSAVED) or not {KEY, "floater"}.isdisjoint(config)):
            raise PlugError(
                f"this {kind} is neither plugged nor extended, but the adapter's base is ({base}); load the "
                "adapter into that"
            )


def _shorter(config: Any, base: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the lengths of an adapter's base and of a model that rotates for less, or by no such scaling.

    A model that rotates for more was extended after the adapter was trained, which is allowed.

    Args:
        config: configuration of the model.
        base: fields of the configuration of the base, of any version of Transformers.
    """
    if config.model_type != base.get("model_type") or not hasattr(config, "max_position_embeddings"):
        return None
    if not isinstance(getattr(config, "rope_parameters", None), dict):
        return None
    other = type(config).from_dict(copy.deepcopy(dict(base)))
    try:
        there, here = native.supported(other), native.supported(config)
        scaled = native.scaling(other) is not None
    except ExtendError:  # layers of several kinds
        return None
    if other.rope_parameters == config.rope_parameters or there < here or (there == here and not scaled):
        return None
    return there, here


def _is_building(config: Any) -> bool:
    """Return whether the initialisation of a model from this configuration has begun and not ended."""
    model = _first.get(id(config))
    return model is not None and model.config is config and "all_tied_weights_keys" not in vars(model)


@contextmanager
def _expecting_flow(kind: Any) -> Iterator[None]:
    """Prevent Transformers from reporting the tensors of flows and extensions as unexpected."""
    with _lock:  # threads share the class
        ignored = kind._keys_to_ignore_on_load_unexpected
        kind._keys_to_ignore_on_load_unexpected = [*(ignored or ()), r"^floater(_extension)?\."]
        try:
            yield
        finally:
            kind._keys_to_ignore_on_load_unexpected = ignored
