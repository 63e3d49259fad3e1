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
    from_pretrained, from_config = kind.from_pretrained.__func__, kind._from_config.__func__
    from_state_dict, save_pretrained = kind._load_from_state_dict, kind.save_pretrained
    load_adapter, construct = kind.load_adapter, kind.__init__

    @wraps(from_pretrained)
    def load(cls: Any, *args: Any, **kwargs: Any) -> Any:
        from floater.pretrained import loading

        return loading.from_pretrained(from_pretrained, cls, *args, **kwargs)

    @wraps(from_config)
    def build(cls: Any, config: Any, **kwargs: Any) -> Any:
        from floater.pretrained import loading

        return loading.with_flow(from_config(cls, config, **kwargs))

    @wraps(from_state_dict)
    def read(self: Any, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        from floater.pretrained import loading

        loading.prepare_weights(self, state_dict, prefix)
        from_state_dict(self, state_dict, prefix, *args, **kwargs)

    @wraps(save_pretrained)
    def save(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        from floater.pretrained import loading

        loading.save_pretrained(save_pretrained, self, save_directory, *args, **kwargs)

    @wraps(construct)
    def make(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, config, *args, **kwargs)
        if getattr(config, "floater", None) or getattr(config, "floater_extension", None):
            from floater.pretrained import loading

            loading.expect_flow(self)

    @wraps(load_adapter)
    def adapt(self: Any, *args: Any, **kwargs: Any) -> Any:
        from floater.pretrained import loading

        return loading.load_adapter(load_adapter, self, *args, **kwargs)

    load.floater = True  # type: ignore[attr-defined]
    kind.from_pretrained, kind._from_config = classmethod(load), classmethod(build)  # type: ignore[arg-type]
    kind._load_from_state_dict, kind.save_pretrained, kind.load_adapter = read, save, adapt
    kind.__init__ = make


def _wrap_trainer(module: ModuleType) -> None:
    kind: Any = module.Trainer
    original = kind._load_from_checkpoint
    if getattr(original, "floater", False):
        return

    @wraps(original)
    def resume(self: Any, checkpoint: str, *args: Any, **kwargs: Any) -> None:
        from floater.pretrained import loading

        loading.check_resumed(self.model, checkpoint)
        original(self, checkpoint, *args, **kwargs)

    resume.floater = True  # type: ignore[attr-defined]
    kind._load_from_checkpoint = resume


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
