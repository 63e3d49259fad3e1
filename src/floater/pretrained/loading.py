"""Transformers' own ways to load a model, made to bring a plugged model's flow along, and an extended one's.

A flow is part of a model as its head is: weights without it compute something else. `save_pretrained` writes
it, but Transformers builds a model by the class of its configuration, finds no place for the flow's weights,
and leaves them out with a note. So methods that all models of Transformers share are wrapped
(`floater.autoload`), and do what is here:

- `from_pretrained`, in which every Auto class, pipeline and library above them ends, plugs the model that it
  has loaded and reads the flow; `_from_config` plugs a new one.
- `_load_from_state_dict`, by which a Trainer resumes and PEFT reads an adapter, refuses a flow's weights
  where there is no flow, and an adapter that was trained with one. It reads weights by the names that files
  have, too.
- A Trainer does not resume a model that is plugged or extended otherwise than that of the checkpoint.
- A model made by its class from a configuration with a flow does not run until it is plugged or extended.
- `load_adapter`, by which `from_pretrained` reads an adapter whose folder it is given, first brings the flow.

An extension that Transformers has no configuration for (`floater.pretrained.extending`) is brought along in
the same ways.

Without this library imported, Transformers must not load such a folder either. The configuration names GUARD
as one of the fusions of modules that the model needs, and Transformers refuses those that it does not know,
by every class and before it reads any weights. Alternatives stop less, or harm more: a model type of our own
does not stop the model's own class and hides the type from whatever asks for it; an unknown quantization
method is only warned about; weights under another name stop a Trainer's resume of the plugged model, too.
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
from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file

from floater.alignment import align
from floater.names import by_own_names
from floater.pretrained.card import write_card
from floater.pretrained.extending import installed
from floater.pretrained.families import PlugError
from floater.pretrained.plug import GUARD, UNSAVED, bake, inner, plug, plugged, record, refuse_to_run
from floater.pretrained.saving import check_same, fill, read_tensors

_PREFIX, _EXTENSION = "floater.", f"{installed.KEY}."
_HUB = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def from_pretrained(original: Callable[..., Any], kind: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a model as `original` does, and plug it if it was saved plugged.

    Args:
        original: the method of Transformers, as a function of the class.
        kind: the class of the model.
        *args: of the method.
        **kwargs: of the method.

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
        kwargs["fusion_config"] = {}  # all that the guard asks for is done below
        with _expecting_flow(kind):
            model, info = original(kind, *args, output_loading_info=True, **kwargs)
    info = _restore(model, info, kwargs)
    if guarded and not _ours(model):
        raise PlugError(
            f"{model.name_or_path} holds a {type(model).__name__} of which a part was extended apart; "
            "extend the whole model before it is saved"
        )
    return (model, info) if wanted else model


def expect_flow(model: Any) -> None:
    """Let a model that is made from a configuration with a flow refuse to run before it is there."""
    settings = getattr(model.config, installed.KEY, None)
    own = isinstance(settings, Mapping) and settings["method"] not in installed.PLAIN
    if own or isinstance(getattr(model.config, "floater", None), Mapping):
        model.register_forward_pre_hook(refuse_to_run)


def with_flow(model: Any) -> Any:
    """Return a new model, extended and plugged if its configuration says so."""
    if (settings := _extension(model)) is not None:
        installed.install(model, settings)
    if (options := _options(model)) is not None:
        length = options.pop("baked")
        plug(model, **options)
        if length is not None:
            bake(model, length)
    return model


def prepare_weights(model: Any, state_dict: dict[str, Tensor], prefix: str) -> None:
    """Refuse weights that were trained with a flow or an extension for a model without it.

    Weights by the names of a file get the model's own, in place: a Trainer that resumes does not see to it.

    Raises:
        PlugError: if the weights have a flow and the model has none, or its configuration or its adapter says
            that there should be one.
    """
    for part, done, how in ((_PREFIX, "plugged", "plug"), (_EXTENSION, "extended", "extend")):
        flow = prefix + part
        if not hasattr(model, part[:-1]) and any(name.startswith(flow) for name in state_dict):
            raise PlugError(
                f"this {type(model).__name__} is not {done}, and the weights that it is to load have a flow: "
                f"{how} it first as theirs was (floater.{how}), or leave out those that begin with '{flow}'"
            )
    settings = getattr(getattr(model, "config", None), installed.KEY, None)
    if isinstance(settings, Mapping) and not installed.reads_as(model, settings["method"]):
        raise PlugError(
            f"{type(model).__name__} is not extended by {settings['method']!r}, as its configuration says: "
            "make it by from_config of its Auto class, or load it by from_pretrained"
        )
    check_adapters(model)
    if not prefix:
        own = by_own_names(model, state_dict)
        state_dict.clear()
        state_dict.update(own)


def check_resumed(model: Any, checkpoint: str) -> None:
    """Refuse to resume a model that is plugged or extended otherwise than that of the checkpoint.

    Raises:
        PlugError: if it is; weights alone do not always tell.
    """
    model, saved = inner(model), _configuration(checkpoint)
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


def check_adapters(model: Any) -> None:
    """Refuse adapters of PEFT whose base was plugged or extended for a model that is not.

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
    """Load an adapter as `original` does, after the flow that the model's configuration speaks of.

    Raises:
        PlugError: if the flow cannot be read, or the adapter was trained with one that the model has not.
    """
    hub = getattr(kwargs.get("load_config"), "download_kwargs", {})
    _restore(model, {"unexpected_keys": set()}, hub)
    found = original(model, *args, **kwargs)
    check_adapters(model)
    return found


def save_pretrained(
    original: Callable[..., None], model: Any, save_directory: Any, *args: Any, **kwargs: Any
) -> None:
    """Save a model as `original` does, with the guard and, of a plugged one, a model card."""
    apart = plugged(model) is None and installed.installed(model) is None and _ours(model)
    if apart or _scaled_apart(model):
        # Transformers asks the configuration of the whole alone what the model needs
        model.config.fusion_config = {**(getattr(model.config, "fusion_config", None) or {}), GUARD: True}
    original(model, save_directory, *args, **kwargs)
    if plugged(model) is not None and kwargs.get("is_main_process", True):
        write_card(Path(save_directory), model, whole=True)


def _scaled_apart(model: Any) -> bool:
    """Return whether a part of a model was extended by its configuration, of which the whole has another."""
    own = model.config
    return any(
        part.config.model_type == own.model_type
        and getattr(part.config, name, None) != getattr(own, name, None)
        for part in model.modules()
        if isinstance(part, PreTrainedModel)
        for name in ("max_position_embeddings", "rope_parameters")
    )


def _ours(model: Any) -> bool:
    """Return whether a model or a part of it is plugged, or extended by a method of this library."""
    return any(plugged(p) is not None or installed.installed(p) is not None for p in model.modules())


def _restore(model: Any, info: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Plug a model that was loaded as it was saved.

    Args:
        model: as Transformers loaded it.
        info: what it reports of the weights.
        given: the arguments of `from_pretrained`.

    Returns:
        The report, less the flow.

    Raises:
        PlugError: if the flow cannot be had.
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
    model.name_or_path = origin  # it is the plugged model that is there
    return {**info, "unexpected_keys": {name for name in info["unexpected_keys"] if not _is_flow(name)}}


def _is_flow(name: str) -> bool:
    return name.startswith(_PREFIX) or f".{_PREFIX}" in name


def _is_extension(name: str) -> bool:
    return name.startswith(_EXTENSION)


def _extension(model: Any) -> dict[str, Any] | None:
    """Return how the configuration says that a model is extended, if the model is not."""
    settings = getattr(getattr(model, "config", None), installed.KEY, None)
    return dict(settings) if isinstance(settings, Mapping) and installed.installed(model) is None else None


def _fill(module: Any, weights: Mapping[str, Tensor], origin: str) -> None:
    """Load the weights of an extension.

    Raises:
        PlugError: if they are not those of the module.
    """
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    there = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name, shape in own.items():  # of the parts that a model has: an encoder alone has no decoder
        if there.get(name) != shape:
            raise PlugError(
                f"{origin} does not hold the weights of its extension: '{_EXTENSION}{name}' is "
                f"{there.get(name, 'missing')} there and {shape} here"
            )
    module.load_state_dict({name: weights[name] for name in own})


def _options(model: Any) -> dict[str, Any] | None:
    """Return how the configuration says that a model is plugged, if the model is not."""
    options = getattr(getattr(model, "config", None), "floater", None)
    return dict(options) if isinstance(options, Mapping) and plugged(model) is None else None


def _weights(origin: str, given: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Return those weights that a model was loaded from whose names begin with a prefix, without it."""
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
    """Return a file of the folder or repository that a model was loaded from; None if it is not there."""
    hub = {key: given[key] for key in _HUB if given.get(key) is not None}
    found = cached_file(origin, name, _raise_exceptions_for_missing_entries=False, **hub)
    return None if found is None else Path(found)


def _configuration(origin: str, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the configuration beside some weights; an empty one where none is on this machine."""
    try:
        file = _file(origin, CONFIG_NAME, {**given, "local_files_only": True})
        return {} if file is None else dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


@contextmanager
def _expecting_flow(kind: Any) -> Iterator[None]:
    """Keep transformers from reporting the flow's tensors as unexpected ones."""
    known = kind._keys_to_ignore_on_load_unexpected
    kind._keys_to_ignore_on_load_unexpected = [*(known or ()), r"^floater(_extension)?\."]
    try:
        yield
    finally:
        kind._keys_to_ignore_on_load_unexpected = known
