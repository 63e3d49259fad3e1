"""Make Transformers load this library's models once `floater` is imported, without importing either before.

After `import floater`, `AutoModel.from_pretrained` reads a plugged model or one of the reference Transformer.
Transformers has no extension point for this: it builds a model by the class in its configuration and leaves
out the weights of a flow with a note. So the methods in `_WRAPPERS` are replaced by functions of
`floater.pretrained.loading`, whose docstrings say what each is for.

Importing Transformers' models takes seconds. So a finder waits until a program imports the modules concerned,
and a wrapper imports the rest of this library when it is first called. That is the only reason for the
finder: without it, `import floater` would have to import Transformers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_WRAPPERS = {
    "transformers.configuration_utils": (
        ("PreTrainedConfig", "_dict_from_json_file", "floater.guard.read_config"),
        ("PreTrainedConfig", "to_json_file", "floater.guard.write_config"),
    ),
    "transformers.modeling_utils": (
        ("PreTrainedModel", "from_pretrained", "load_model"),
        ("PreTrainedModel", "_from_config", "build_model"),
        ("PreTrainedModel", "__init__", "initialize"),
        ("PreTrainedModel", "_load_from_state_dict", "load_weights"),
        ("PreTrainedModel", "load_adapter", "load_adapter"),
        ("PreTrainedModel", "save_pretrained", "save_model"),
    ),
    "transformers.generation.continuous_batching.continuous_api": (
        ("ContinuousMixin", "init_continuous_batching", "batch_continuously"),
        ("ContinuousBatchingManager", "__init__", "batch_continuously"),
        ("ContinuousBatchingManager", "start", "batch_continuously"),
    ),
    "transformers.trainer": (("Trainer", "_load_from_checkpoint", "resume"),),
    "transformers.models.auto.configuration_auto": (("AutoConfig", "from_pretrained", "load_config"),),
}
"""By module of Transformers: a class, its method, and the function that replaces it, of
`floater.pretrained.loading` unless it names another module; its first argument is the original."""


def install() -> None:
    """Wrap Transformers' methods that load and save models, now or when its modules are imported.

    Example:
        >>> import transformers
        >>> load = transformers.AutoConfig.from_pretrained
        >>> install()  # once is enough
        >>> transformers.AutoConfig.from_pretrained == load
        True
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in _WRAPPERS.keys() & sys.modules.keys():
        _wrap_methods(sys.modules[name])


class _Finder(MetaPathFinder):
    """Find the modules of `_WRAPPERS`, and wrap their methods as soon as they have been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _WRAPPERS:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_wrap(module: ModuleType) -> None:
                execute(module)
                _wrap_methods(module)

            spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap_methods(module: ModuleType) -> None:
    for class_name, method, wrapper in _WRAPPERS[module.__name__]:
        kind = getattr(module, class_name)
        original = inspect.getattr_static(kind, method)
        is_class_method = isinstance(original, classmethod)
        function = original.__func__ if is_class_method else original
        if not hasattr(function, "_floater"):
            wrapped = _wrapped(function, wrapper)
            setattr(kind, method, classmethod(wrapped) if is_class_method else wrapped)


def _wrapped(original: Callable[..., Any], wrapper: str) -> Callable[..., Any]:
    """Return a function that calls one of this library's functions with the original."""

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        if wrapper == "initialize" and not _has_flow(*args, **kwargs):
            return original(*args, **kwargs)  # most models: nothing is imported, perhaps on a "meta" device
        module, _, function = wrapper.rpartition(".")
        home = import_module(module or "floater.pretrained.loading")
        return getattr(home, function)(original, *args, **kwargs)

    method._floater = True  # type: ignore[attr-defined]
    return method


def _has_flow(model: Any, config: Any, *args: Any, **kwargs: Any) -> bool:
    """Return whether a model is initialised from a configuration with a flow or an extension."""
    return bool(getattr(config, "floater", None) or getattr(config, "floater_extension", None))
