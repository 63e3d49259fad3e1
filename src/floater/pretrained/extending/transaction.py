"""Changes of a model that are made as a whole or not at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from floater.pretrained.forward import observers, unobserve


@contextmanager
def transaction(model: nn.Module) -> Iterator[None]:
    """Restore the modules and configurations of a model if an error ends the block.

    Tensors are not copied, so the block must replace them and not change their values.

    Args:
        model: model that the block changes.
    """
    attributes = [(part, dict(part.__dict__)) for part in model.modules()]
    # parameters, buffers, parts and hooks, in the very objects that handles of hooks refer to
    containers: list[tuple[Any, Any]] = [
        (value, copy.copy(value))
        for _, values in attributes
        for value in values.values()
        if isinstance(value, dict | set)
    ]
    observing = [observers(part) for part, _ in attributes]
    copy_configs(model)
    for part, values in attributes:
        if "generation_config" in values:
            part.generation_config = copy.deepcopy(values["generation_config"])
    try:
        yield
    except BaseException:
        for part, values in attributes:
            part.__dict__.clear()
            part.__dict__.update(values)
        for container, entries in containers:
            container.clear()
            container.update(entries)
        for (part, _), before in zip(attributes, observing, strict=True):
            for observer in observers(part):
                if observer not in before:
                    unobserve(part, observer)
        raise


def copy_configs(model: nn.Module) -> None:
    """Give a model and its parts copies of their configurations, which other models may share."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        if (config := module.__dict__.get("config")) is not None:
            module.config = copy.deepcopy(config, memo)
