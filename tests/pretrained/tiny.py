"""Tiny random models of every class of Transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from transformers import CONFIG_MAPPING


def tiny(name: str) -> Any:
    """A model of a class, by the name of its configuration."""
    import tiny_configs

    return tiny_configs.build(type(CONFIG_MAPPING[name]())).eval()


def accepted(prepare: Callable[[str], Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names of classes that `prepare` does not refuse, each with what it returns."""
    import tiny_configs

    for name in tiny_configs.classes(whole=False):
        try:
            prepared = prepare(name)
        except Exception:  # not built, other inputs than texts, or refused
            continue
        yield name, prepared
