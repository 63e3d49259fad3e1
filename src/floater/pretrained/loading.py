"""Wrappers of Transformers' methods that load and save models, which include the flow or the extension.

A flow is part of a model like its head: without it, the weights compute something else. `save_pretrained`
writes it, but Transformers builds a model by the class in its configuration, which has no parameters for the
flow, and ignores the flow's weights with a note. Therefore methods that all models of Transformers share are
wrapped (`floater.autoload`) with the functions of this module:

- `from_pretrained`, which every Auto class, pipeline and library above them calls, plugs the model after
  loading it and reads the flow; `_from_config` plugs a new model.
- `_load_from_state_dict`, by which a Trainer resumes and PEFT reads an adapter, refuses the weights of a flow
  if the model has none, and an adapter that was trained with one. It also accepts weights under the names
  that they have in files.
- A Trainer does not resume a model that is plugged or extended differently from that of the checkpoint.
- A model that its class builds from a configuration with a flow does not run until it is plugged or extended.
- `load_adapter`, by which `from_pretrained` reads an adapter from its directory, first loads the flow.

Extensions for which Transformers has no configuration (`floater.pretrained.extending`) are handled in the
same way.

If this library is not imported, Transformers must not load such a directory. The configuration lists GUARD
among the fusions of modules that the model needs, and every class of Transformers refuses unknown fusions
before it reads any weights. The alternatives are weaker or do more harm: a new model type does not stop the
model's own class and hides the type from code that reads it; an unknown quantization method only leads to a
warning; weights under other names also prevent a Trainer from resuming the plugged model.
"""

# mypy: disable-error-code="no-untyped-call"
# (the base class of transformers is untyped)

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from floater.pretrained.card import write_card
from floater.pretrained.extending import installed
from floater.pretrained.families import PlugError
from floater.pretrained.forward import observe
from floater.pretrained.plug import (
    GUARD,
    UNSAVED,
    Refusal,
    bake,
    inner,
    plug,
    plugged,
    plugged_around,
    record,
)
from floater.pretrained.saving import check_same, fill, read_tensors, readable
from floater.pretrained.weight_names import by_own_names
from floater.transformer.alignment import align

_PREFIX, _EXTENSION = "floater.", f"{installed.KEY}."
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def from_pretrained(original: Callable[..., Any], kind: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a model as `original` does, and plug it if it was saved plugged.

    Args:
        original: method of Transformers, as a function whose first argument is the class.
        kind: class of the model.
        *args: positional arguments of the method.
        **kwargs: keyword arguments of the method.

    Raises:
        PlugError: if the flow cannot be read.
    """
    wanted = kwargs.pop("output_loading_info", False)
    guarded = False
    try:
        model, info = original(kind, *args, output_loading_info=True, **kwargs)
    except ValueError as error:
        if not any(guard in str(error) for guard in (GUARD, installed.GUARD)):
            raise
        guarded = True
        kwargs["fusion_config"] = {}  # the flow or extension that the guard requires is added below
        with _expecting_flow(kind):
            model, info = original(kind, *args, output_loading_info=True, **kwargs)
    with readable(model.name_or_path):
        info = _restore(model, info, kwargs)
    if guarded and not _ours(model):
        raise PlugError(
            f"{model.name_or_path} holds a {type(model).__name__} of which a part was extended apart; "
            "before it is saved, extend the whole model, or put the part's configuration into the whole's"
        )
    return (model, info) if wanted else model


def expect_flow(model: Any) -> None:
    """Make a model that is built from a configuration with a flow refuse to run without the flow."""
    settings = getattr(model.config, installed.KEY, None)
    own = isinstance(settings, Mapping) and settings.get("method") not in [*installed.PLAIN]
    if own or isinstance(getattr(model.config, "floater", None), Mapping):
        observe(model, Refusal())


def from_config(original: Callable[..., Any], kind: Any, config: Any, **kwargs: Any) -> Any:
    """Make a model as `original` does, and extend and plug it if its configuration describes it so."""
    model = original(kind, config, **kwargs)
    if (settings := _extension(model)) is not None:
        installed.install(model, settings)
    if (options := _options(model)) is not None:
        length = options.pop("baked")
        plug(model, **options)
        if length is not None:
            bake(model, length)
    return model


def load_from_state_dict(
    original: Callable[..., None],
    model: Any,
    state_dict: dict[str, Tensor],
    prefix: str,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Load weights as `original` does, unless they were trained with a flow or extension that a model lacks.

    Weights under the names of a file are renamed to the model's own in place, as a resuming Trainer does not
    rename them.

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
    for part, done, how in ((_PREFIX, "plugged", "plug"), (_EXTENSION, "extended", "extend")):
        flow = prefix + part
        if not hasattr(model, part[:-1]) and any(name.startswith(flow) for name in state_dict):
            raise PlugError(
                f"this {type(model).__name__} is not {done}, and the weights that it is to load have a flow: "
                f"{how} it first as theirs was (floater.{how}), or leave out those that begin with '{flow}'"
            )
    settings = getattr(getattr(model, "config", None), installed.KEY, None)
    if isinstance(settings, Mapping) and not installed.reads_as(model, settings.get("method")):
        raise PlugError(
            f"{type(model).__name__} is not extended by {settings['method']!r}, as its configuration says: "
            "make it by from_config of its Auto class, or load it by from_pretrained"
        )
    check_adapters(model)
    if not prefix:
        own = by_own_names(model, state_dict)
        state_dict.clear()
        state_dict.update(own)
    original(model, state_dict, prefix, *args, **kwargs)


def load_from_checkpoint(
    original: Callable[..., None], trainer: Any, checkpoint: str, *args: Any, **kwargs: Any
) -> None:
    """Resume a model as `original` does, if it is plugged and extended as that of the checkpoint.

    Weights alone do not always show the difference.

    Raises:
        PlugError: if the models differ.
    """
    model, saved = inner(trainer.model), _configuration(checkpoint)
    if (options := saved.get("floater")) is not None and (state := plugged(model)) is not None:
        check_same(
            {name: options[name] for name in state.options if name in options}, state.options, checkpoint
        )
    there, here = saved.get(installed.KEY), installed.installed(model)
    if there is not None and there != json.loads(json.dumps(here)):
        raise PlugError(
            f"this {type(model).__name__} is not extended as the model in {checkpoint} was: by "
            f"{here or 'nothing'}, not {there}; extend it so first (floater.extend)"
        )
    original(trainer, checkpoint, *args, **kwargs)


def check_adapters(model: Any) -> None:
    """Refuse adapters of PEFT whose base was plugged or extended, if the model is neither.

    Raises:
        PlugError: if there is such an adapter.
    """
    for adapter in (getattr(model, "peft_config", None) or {}).values():
        base = adapter.base_model_name_or_path
        if _ours(model) or base is None or base == getattr(model, "name_or_path", None):
            continue
        if base == UNSAVED or not {installed.KEY, "floater"}.isdisjoint(_configuration(base)):
            raise PlugError(
                f"this {type(model).__name__} is neither plugged nor extended, but the adapter's base is "
                f"({base}); load the adapter into that"
            )


def load_adapter(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Load an adapter as `original` does, after the flow in the model's configuration.

    Raises:
        PlugError: if the flow cannot be read, or the adapter was trained with a flow and the model has none.
    """
    hub = getattr(kwargs.get("load_config"), "download_kwargs", {})
    _restore(model, {"unexpected_keys": set()}, hub)
    found = original(model, *args, **kwargs)
    check_adapters(model)
    return found


def save_pretrained(
    original: Callable[..., None], model: Any, save_directory: Any, *args: Any, **kwargs: Any
) -> None:
    """Save a model as `original` does, with the guard and, if Transformers alone refuses it, a model card.

    Raises:
        PlugError: if the model runs with the flow or the extension of a model that contains it, which its
            files would lack.
    """
    for whole, what, other in (
        (plugged_around(model), "flow", ", or unplug it first"),
        (installed.extended_around(model), "extension", ""),
    ):
        if whole is not None:
            raise PlugError(
                f"this {type(model).__name__} runs with the {what} of a {type(whole).__name__}, which its "
                f"files would lack: save the {type(whole).__name__}{other}"
            )
    apart = plugged(model) is None and installed.installed(model) is None and _ours(model)
    if apart or _scaled_apart(model):
        # Transformers reads the fusions that a model needs only from the configuration of the whole model
        model.config.fusion_config = {**(getattr(model.config, "fusion_config", None) or {}), GUARD: True}
    original(model, save_directory, *args, **kwargs)
    extension = installed.installed(model)
    ours = plugged(model) is not None or (extension and extension["method"] not in installed.PLAIN)
    if ours and kwargs.get("is_main_process", True):
        write_card(Path(save_directory), model, whole=True)


def _scaled_apart(model: Any) -> bool:
    """Return whether a part of a model was extended by its configuration, and that of the whole differs."""
    parts = [part.config for part in model.modules() if isinstance(part, PreTrainedModel)]
    own = [
        each for each in (model.config, *vars(model.config).values()) if isinstance(each, PreTrainedConfig)
    ]
    written: dict[str, list[Any]] = {}
    for config in own:
        written.setdefault(config.model_type, []).append(_lengths(config))
    return any(_lengths(part) not in written.get(part.model_type, [_lengths(part)]) for part in parts)


def _lengths(config: Any) -> tuple[Any, ...]:
    return tuple(getattr(config, name, None) for name in ("max_position_embeddings", "rope_parameters"))


def _ours(model: Any) -> bool:
    """Return whether a model or a part of it is plugged, or extended by a method of this library."""
    return any(plugged(p) is not None or installed.installed(p) is not None for p in model.modules())


def _restore(model: Any, info: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Plug or extend a loaded model as it was when it was saved.

    Args:
        model: model as Transformers loaded it.
        info: report of Transformers on the weights.
        given: arguments of `from_pretrained`.

    Returns:
        The report without the weights of the flow and the extension.

    Raises:
        PlugError: if the flow or the extension cannot be restored.
    """
    origin = str(getattr(model, "name_or_path", None) or "the weights")
    if (settings := _extension(model)) is not None:
        installed.install(model, settings)
        known: Any = getattr(model, installed.KEY, None)
        if known is not None:
            _fill(known, _weights(origin, given, _EXTENSION), origin)
        info = {**info, "unexpected_keys": {n for n in info["unexpected_keys"] if not _is_extension(n)}}
    elif installed.installed(model) is None and (
        any(map(_is_extension, info["unexpected_keys"]))
        or ("config" in given and installed.KEY in _configuration(origin, given))
    ):
        raise PlugError(
            f"{origin} holds an extended model, but the configuration that was given does not say how: use "
            f"that of the folder, or copy its '{installed.KEY}'"
        )
    options = _options(model)
    unread = {name for name in info["unexpected_keys"] if _is_flow(name)}
    if options is None:
        if unread and plugged(model) is None:
            raise PlugError(
                f"{origin} has a flow, {min(unread)}, that {type(model).__name__} has no place for: its "
                "configuration does not say how it is plugged; load the model that the flow belongs to, plug "
                "it (floater.plug) and give it these weights"
            )
        return info
    record(model, None)
    written = {"model_type": model.config.model_type, "plug": options}
    fill(model, written, _weights(origin, given, _PREFIX), origin)
    align(model)
    model.name_or_path = origin  # plugging sets UNSAVED, but the directory contains the plugged model
    return {**info, "unexpected_keys": {name for name in info["unexpected_keys"] if not _is_flow(name)}}


def _is_flow(name: str) -> bool:
    return name.startswith(_PREFIX) or f".{_PREFIX}" in name


def _is_extension(name: str) -> bool:
    return name.startswith(_EXTENSION)


def _extension(model: Any) -> dict[str, Any] | None:
    """Return the extension in a model's configuration; None if there is none or the model has it already."""
    settings = getattr(getattr(model, "config", None), installed.KEY, None)
    if installed.installed(model) is not None or settings is None:
        return None
    installed.check(settings)
    return dict(settings)


def _fill(module: Any, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load the weights of an extension.

    Raises:
        PlugError: if their names or shapes are not those of the module.
    """
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name, shape in own.items():  # only the model's own parts: an encoder alone has no decoder
        if there.get(name) != shape:
            raise PlugError(
                f"{origin} does not hold the weights of its extension: '{_EXTENSION}{name}' is "
                f"{there.get(name, 'missing')} there and {shape} here"
            )
    module.load_state_dict({name: weights[name] for name in own})


def _options(model: Any) -> dict[str, Any] | None:
    """Return the options of `plug` in a model's configuration; None if there are none or it is plugged."""
    options = getattr(getattr(model, "config", None), "floater", None)
    if plugged(model) is not None or options is None:
        return None
    if not isinstance(options, Mapping):
        raise PlugError(f"'floater' in the configuration is {options!r}; it must be the options of a flow")
    return dict(options)


def _weights(origin: str, given: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Return the loaded weights whose names begin with a prefix, under their names without the prefix."""
    if given.get("state_dict") is not None:
        weights = given["state_dict"]
        return {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}

    def variant(name: str) -> str:
        stem, ending = name.rsplit(".", 1)
        return f"{stem}.{given['variant']}.{ending}" if given.get("variant") else name

    if (whole := _file(origin, variant(SAFE_WEIGHTS_NAME), given)) is not None:
        return read_tensors([whole], prefix)
    if (index := _file(origin, variant(SAFE_WEIGHTS_INDEX_NAME), given)) is None:
        raise PlugError(f"{origin} holds no {SAFE_WEIGHTS_NAME}; a flow is read from safetensors alone")
    shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    names = sorted({shard for name, shard in shards.items() if name.startswith(prefix)})
    return read_tensors([found for name in names if (found := _file(origin, name, given))], prefix)


def _file(origin: str, name: str, given: Mapping[str, Any]) -> Path | None:
    """Return a file of the directory or repository that a model was loaded from; None if it is missing."""
    hub = {key: given[key] for key in _HUB if given.get(key) is not None}
    found = cached_file(origin, name, _raise_exceptions_for_missing_entries=False, **hub)
    return None if found is None else Path(found)


def _configuration(origin: str, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the configuration beside weights; an empty one if there is none on this machine."""
    try:
        file = _file(origin, CONFIG_NAME, {**given, "local_files_only": True})
        return {} if file is None else dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


@contextmanager
def _expecting_flow(kind: Any) -> Iterator[None]:
    """Prevent Transformers from reporting the tensors of flows and extensions as unexpected."""
    known = kind._keys_to_ignore_on_load_unexpected
    kind._keys_to_ignore_on_load_unexpected = [*(known or ()), r"^floater(_extension)?\."]
    try:
        yield
    finally:
        kind._keys_to_ignore_on_load_unexpected = known
