"""Adapters of PEFT beside a flow: those whose output a flow cannot simply be added to."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

from floater.pretrained.families import PlugError
from floater.pretrained.host import part_at

_SCALING = {"IA3", "BOFT", "DEFT", "DORA", "ROAD"}
"""They change the output of the projection, what a flow has added to it included."""
_BYPASSING = {"BAT", "FROD", "GLORA", "HRA", "SHIRA", "SUPERTUNING"}
"""They read the weights of the projection without calling it."""


def check_adapters(root: nn.Module, body: nn.Module, paths: Iterable[str]) -> None:
    """Refuse adapters that would ignore a flow, and warn of those that scale it until they are merged.

    Args:
        root: the plugged model.
        body: its body, with the projections.
        paths: the names in the body of the projections that a flow is added to.

    Raises:
        PlugError: if an active adapter does not call such a projection, or PEFT trains a copy of one.

    Example:
        >>> check_adapters(nn.Identity(), nn.Identity(), ["query"])
    """
    configs = (getattr(root, "peft_config", None) or {}).values()
    if not configs:
        return
    wrapped = {path: part for path in paths if (part := part_at(body, path)) is not None}
    if copied := [path for path, part in wrapped.items() if is_copied(part)]:
        raise PlugError(
            f"modules_to_save has a copy of {copied[0]}, which a flow is added to; leave it out, or unplug it"
        )
    kinds = {_kind(config) for config in configs} & (_SCALING | _BYPASSING)
    if not kinds:
        return
    active = [path for path, part in wrapped.items() if hasattr(part, "base_layer") and _acts(part)]
    if not active:
        return
    names, other = " and ".join(sorted(kinds)), "an adapter that adds to its output, such as LoRA"
    if kinds & _BYPASSING:
        raise PlugError(
            f"{names} reads the weights of {active[0]} without calling it, so its flow would be ignored; use "
            f"{other}, or leave it out of target_modules"
        )
    warnings.warn(
        f"{names} scales the output of {active[0]} with its flow until it is merged: merging will change "
        f"what the model computes; {other} does not",
        stacklevel=2,
    )


def is_copied(part: nn.Module) -> bool:
    """Return whether PEFT trains a copy of a part, which is in `modules_to_save`."""
    return hasattr(part, "original_module") and hasattr(part, "modules_to_save")


def active(part: Any) -> Any:
    """Return a part of a model; if PEFT keeps a copy for the active adapter, the copy.

    Raises:
        PlugError: if each row of a batch has its adapter, as PEFT tells the part by a hook.
    """
    copies = getattr(part, "modules_to_save", None)
    if copies is None:
        return part
    if any("adapter_names" in getattr(hook, "keywords", ()) for hook in part._forward_pre_hooks.values()):
        raise PlugError(
            "adapter_names gives each row of a batch its adapter, and modules_to_save has a flow for each of "
            "them; use set_adapter, and load the model again, as PEFT keeps adapter_names after an error"
        )
    adapter = next(iter(part.active_adapters), None)
    return part.original_module if part.disable_adapters or adapter not in copies else copies[adapter]


def called_again(body: nn.Module, path: str, uses: int) -> PlugError:
    """Return the refusal of a projection that is called more often than a flow is added to its output.

    Args:
        body: body with the projection.
        path: name that the projection had in the body when it was plugged.
        uses: number of calls in a forward pass that are known.
    """
    prompted = [name for name, part in body.named_modules() if hasattr(part, "adaption_prompt")]
    if path.startswith(tuple(f"{name}." for name in prompted)):
        return PlugError(
            f"ADAPTION_PROMPT calls {path} again, for prompts, which have no positions for a flow; use LoRA "
            "or prefix tuning, or plug other blocks than it adapts"
        )
    return PlugError(
        f"{path} is called more often than {uses} times in a forward pass; copy blocks before the model is "
        "plugged"
    )


def _kind(config: Any) -> str:
    """Return the kind of an adapter's configuration: DORA for LoRA and BAT for MiSS with these options."""
    kind = getattr(config, "peft_type", "")
    name = str(getattr(kind, "value", kind)).upper()
    if name == "MISS" and config.init_weights == "bat":
        return "BAT"
    return "DORA" if getattr(config, "use_dora", False) else name


def _acts(part: Any) -> bool:
    """Return whether a wrapped projection is computed with adapters that are not merged into it."""
    return not (part.merged or part.disable_adapters)
