"""Make Transformers load this library's models once `floater` is imported, without importing either before.

`import floater` must suffice for `AutoModel.from_pretrained` to read a plugged model or one of the reference
Transformer. Importing Transformers' models for that takes seconds, so a finder waits for the two modules
concerned, and what wraps their methods imports the rest of this library when one of them is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def install() -> None:
    """Wrap Transformers' methods that load and save models, now or when its modules are imported.

    - `PreTrainedModel`: `from_pretrained`, in which every Auto class, pipeline and library above them ends,
      `_from_config`, `_load_from_state_dict`, `load_adapter` and `save_pretrained` include a flow, and a
      model made by its class refuses to run without it; see `floater.pretrained.loading`.
    - `Trainer` resumes a model that is plugged and extended as that of the checkpoint, or not at all.
    - `AutoConfig.from_pretrained` finds the model types of this library, and so do the Auto classes.

    Example:
        >>> import transformers
        >>> config = transformers.AutoConfig.from_pretrained
        >>> install()  # once is enough
        >>> transformers.AutoConfig.from_pretrained == config
        True
    """
    _when_imported("transformers.modeling_utils", _wrap_models)
    _when_imported("transformers.trainer", _wrap_trainer)
    _when_imported("transformers.models.auto.configuration_auto", _wrap_configurations)


def _when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    if (module := sys.modules.get(name)) is not None:
        act(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder(MetaPathFinder):
    """Call a function with a module as soon as it has been imported."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name, self.act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)  # the other finders know where it is
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def run(module: ModuleType) -> None:
                execute(module)
                self.act(module)

            spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


def _wrap_models(module: ModuleType) -> None:
    kind: Any = module.PreTrainedModel
    if getattr(kind.from_pretrained, "floater", False):
        return
    for name in ("from_pretrained", "_from_config"):
        setattr(kind, name, classmethod(_wrapped(getattr(kind, name).__func__, name)))
    for name in ("_load_from_state_dict", "save_pretrained", "load_adapter"):
        setattr(kind, name, _wrapped(getattr(kind, name), name))
    construct = kind.__init__

    @wraps(construct)
    def make(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, config, *args, **kwargs)
        if getattr(config, "floater", None) or getattr(config, "floater_extension", None):
            from floater.pretrained import loading

            loading.expect_flow(self)

    kind.__init__ = make


def _wrap_trainer(module: ModuleType) -> None:
    kind: Any = module.Trainer
    if not getattr(kind._load_from_checkpoint, "floater", False):
        kind._load_from_checkpoint = _wrapped(kind._load_from_checkpoint, "_load_from_checkpoint")


def _wrapped(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a method that calls its namesake in `floater.pretrained.loading` with the original."""

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        loading = import_module("floater.pretrained.loading")
        return getattr(loading, name.removeprefix("_"))(original, *args, **kwargs)

    method.floater = True  # type: ignore[attr-defined]
    return method


def _wrap_configurations(module: ModuleType) -> None:
    kind: Any = module.AutoConfig
    if getattr(kind.from_pretrained, "floater", False):
        return
    from_pretrained = kind.from_pretrained.__func__

    @wraps(from_pretrained)
    def load(cls: Any, *args: Any, **kwargs: Any) -> Any:
        for name in ("documents", "events", "images"):  # they register their types, and that of all models
            import_module(f"floater.transformer.{name}")
        return from_pretrained(cls, *args, **kwargs)

    load.floater = True  # type: ignore[attr-defined]
    kind.from_pretrained = classmethod(load)
