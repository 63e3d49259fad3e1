"""The Hugging Face model that gets a new part: found in its wrappers, renamed, refused or allowed to run."""

from __future__ import annotations

import copy
import warnings
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from floater.pretrained.families import PlugError
from floater.pretrained.forward import observers, unobserve

UNSAVED = "a plugged or extended model that is in no folder yet: save_pretrained it, then name that folder"
"""The `name_or_path` of a changed model. PEFT writes it into adapters as their base, and the directory that
the model was loaded from contains the unchanged one."""

CODE = "modeling_floater"
"""Name of the file of exported code."""

_Value = TypeVar("_Value")
_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"}


def inner(model: nn.Module) -> nn.Module:
    """Return the Hugging Face model inside a compiled or a PEFT model.

    Raises:
        PlugError: if it is wrapped for training on several devices, where new weights would not take part.
    """
    if (wrapper := type(model).__name__) in _WRAPPERS:
        raise PlugError(f"the model is a {wrapper}; change the model first, and wrap it then")
    model = getattr(model, "_orig_mod", model)
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def check_not_code(model: nn.Module, error: type[ValueError], done: str) -> None:
    """Refuse a model that is or contains one of exported code, whose class holds its positions.

    Args:
        model: any model.
        error: class of the error.
        done: what is refused, as a participle.
    """
    for part in model.modules() if isinstance(model, nn.Module) else ():
        if type(part).__module__.rpartition(".")[2] == CODE:
            raise error(
                f"{type(part).__name__} is exported code, which cannot be {done}; load the model that it was "
                "exported from, change that, and export again"
            )


def part_at(root: nn.Module, path: str) -> nn.Module | None:
    """Return the module of a name; None if it is gone, as in a model from which blocks were removed.

    Wrappers of parts, as of FSDP, add names of their own to `named_modules`, but find a part by its old name.

    Example:
        >>> part_at(nn.Sequential(nn.Identity()), "0"), part_at(nn.Sequential(), "0")
        (Identity(), None)
    """
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None


def copy_or_share(value: _Value, root: nn.Module, path: str, memo: dict[int, Any]) -> _Value:
    """Return the deep copy of what a module needs of a whole model, for `__deepcopy__`.

    It is the value itself if blocks are copied without the model or a model inside it: such blocks still
    belong to the model, and their copies would otherwise contain a copy of it.

    Args:
        value: object that leads to the model.
        root: the model.
        path: name of the module in it.
        memo: argument of `__deepcopy__`.
    """
    names = path.split(".")
    around = [part_at(root, ".".join(names[:end])) for end in range(len(names) + 1)]
    if not any(id(part) in memo for part in around if part is root or isinstance(part, PreTrainedModel)):
        return value
    copied: _Value = object.__new__(type(value))
    memo[id(value)] = copied
    copied.__dict__.update(copy.deepcopy(value.__dict__, memo))
    return copied


def device_of(model: nn.Module) -> Any:
    """Return the device of the first parameter that is there, not offloaded; None if there is none."""
    return next((p.device for p in model.parameters() if p.device.type != "meta"), None)


def keep_weights(added: nn.Module) -> None:
    """Mark a part added to a model as initialised, or the model's `init_weights` would overwrite it."""
    for module in added.modules():
        module._is_hf_initialized = True  # type: ignore[assignment]


def rename(model: Any, name: str) -> str | None:
    """Set the `name_or_path` of a model and of the base of its adapters; return the one before, if any."""
    for adapter in (getattr(model, "peft_config", None) or {}).values():
        adapter.base_model_name_or_path = name
    before: str | None = model.__dict__.get("name_or_path")
    if before is not None:
        model.name_or_path = name
    return before


def warn_of_adapters(model: nn.Module, part: str, how: str) -> None:
    """Warn that files of the adapters that a PEFT model has already will lack a new part with weights."""
    if hasattr(getattr(model, "_orig_mod", model), "get_base_model"):
        warnings.warn(
            f"the files of this model's adapters will lack the weights of '{part}': save them with the whole "
            f"model, or {how} before get_peft_model, with modules_to_save=[{part!r}]",
            stacklevel=3,
        )


class Refusal:
    """An observer that refuses the forward passes of a model that lacks the flow of its configuration."""

    def enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a forward pass."""
        raise PlugError(
            f"this {type(model).__name__} was made without the flow that its configuration has: make it by "
            "from_config of its Auto class, or load it by from_pretrained"
        )

    def leave(self, output: Any) -> None:
        """Do nothing."""


def allow_to_run(model: nn.Module) -> None:
    """Let a model and its parts run: remove each `Refusal`."""
    for part in model.modules():
        for observer in observers(part):
            if isinstance(observer, Refusal):
                unobserve(part, observer)
