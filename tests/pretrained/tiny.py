"""Tiny random models of every class of Transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from transformers import CONFIG_MAPPING


def tiny(name: str) -> Any:
    """A model of a class, by the name of its configuration."""
    return copy.deepcopy(_built(name))


@lru_cache(maxsize=1)  # tests change a model that they compare with another
def _built(name: str) -> Any:
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
