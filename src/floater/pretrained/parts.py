"""Parts of a model that were plugged or extended apart from the whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from floater.pretrained.extending.install import KEY, PLAIN, extension_settings
from floater.pretrained.families import PlugError
from floater.pretrained.find import is_inside
from floater.pretrained.plugged import GUARD, plugged


def is_changed(model: Any) -> bool:
    """Return whether a model or a part of it is plugged, or extended by a method of this library."""
    return any(map(_is_changed, model.modules()))


def changed_apart(model: Any) -> bool:
    """Return whether a part of a model was plugged or extended, and not as a part of the whole."""
    return any(_is_changed(part) for part in model.modules() if part is not model) or _has_scaled_part(model)


@contextmanager
def describing_parts(model: Any) -> Iterator[None]:
    """Describe the parts that were changed apart in the configuration of the whole, while the whole is saved.

    Transformers builds a part, as the model of texts in a model of images, from its section of the whole's
    configuration. `plug` and `extend` give a part a copy of that section, which the whole does not have.

    Args:
        model: model that is saved within the block.

    Raises:
        PlugError: if a changed part has no section, or the whole was changed, too.
    """
    before: list[tuple[Any, str, Any]] = []
    try:
        for holder, name, part in _sections_of_parts(model):
            section = getattr(holder, name)
            if _is_marked(section) or _is_marked(part.config) or "_floater_extended" in vars(part):
                before.append((holder, name, section))
                setattr(holder, name, part.config)
        sections = [section for _, _, section in _sections(model.config)]
        changed = [part for part in model.modules() if part is not model and _is_changed(part)]
        lost = [part for part in changed if not any(part.config is section for section in sections)]
        if lost or (changed and _is_changed(model)) or _has_scaled_part(model):
            raise PlugError(
                f"a part of this {type(model).__name__} was plugged or extended apart from the whole, which "
                "its files would lack; plug and extend the whole model, or save the part"
            )
        if plugged(model) is None:  # of a whole, Transformers reads no other configuration for what it needs
            fusions = getattr(model.config, "fusion_config", None) or {}
            required = {name: value for name, value in fusions.items() if name != GUARD}
            if any(map(needs_library, changed)):
                required[GUARD] = True
            if required != fusions:
                before.append((model.config, "fusion_config", fusions))
                model.config.fusion_config = required
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


def _is_changed(part: Any) -> bool:
    return plugged(part) is not None or extension_settings(part) is not None


def needs_library(part: Any) -> bool:
    """Return whether Transformers alone cannot compute what a model or a part of it computes."""
    settings = extension_settings(part)
    return plugged(part) is not None or (settings is not None and settings["method"] not in PLAIN)


def _sections(config: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield the configurations of parts within that of a whole, with their holders and names there."""
    for name, value in list(vars(config).items()):
        if isinstance(value, PreTrainedConfig):
            yield config, name, value
            yield from _sections(value)


def _sections_of_parts(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield sections with the holder, the name and the part, which has another configuration of its class.

    Classes with several such sections or parts are omitted, as they cannot be matched.
    """
    sections = list(_sections(model.config))
    kinds = {type(section) for _, _, section in sections}
    parts: dict[str, Any] = {}
    for path, part in model.named_modules():
        if part is model or not isinstance(part, PreTrainedModel) or (kind := type(part.config)) not in kinds:
            continue
        if not any(is_inside(path, outer) and type(parts[outer].config) is kind for outer in parts):
            parts[path] = part
    for kind in kinds:
        described = [each for each in sections if type(each[2]) is kind]
        built = [part for part in parts.values() if type(part.config) is kind]
        free = [each for each in described if not any(each[2] is part.config for part in built)]
        changed = [part for part in built if not any(part.config is each[2] for each in described)]
        if len(free) == len(changed) == 1:
            yield free[0][0], free[0][1], changed[0]


def _is_marked(config: Any) -> bool:
    return any(getattr(config, name, None) is not None for name in ("floater", KEY))


def _has_scaled_part(model: Any) -> bool:
    """Return whether a part of a model was extended by its configuration, and that of the whole differs."""
    sections = [model.config, *(section for _, _, section in _sections(model.config))]
    declared: dict[str, list[Any]] = {}
    for config in sections:
        declared.setdefault(config.model_type, []).append(_lengths(config))
    parts = [
        part.config for part in model.modules() if "_floater_extended" in vars(part) and part is not model
    ]
    return any(_lengths(part) not in declared.get(part.model_type, [_lengths(part)]) for part in parts)


def _lengths(config: Any) -> tuple[Any, ...]:
    return tuple(getattr(config, name, None) for name in ("max_position_embeddings", "rope_parameters"))
