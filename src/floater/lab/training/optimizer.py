"""Adam over two kinds of parameters, those of flows and the rest."""

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import AdamW
from transformers import TrainingArguments

from floater.encodings.model import count_parameters
from floater.flow import FlowEncoder
from floater.pretrained.extending.clex import ScaleFlow


def flow_parameters(model: nn.Module) -> set[str]:
    """Return the names of the parameters of all flows in a model, of positions and of rotary scales.

    Example:
        >>> from floater.flow import ZeroField
        >>> flow = FlowEncoder(ZeroField(), 2, blocks=[0], names=["q"])
        >>> flow_parameters(nn.ModuleDict({"flow": flow, "head": nn.Linear(2, 2)}))
        {'flow.start'}
    """
    flows = [part for part in model.modules() if isinstance(part, FlowEncoder | ScaleFlow)]
    inside = {id(p) for flow in flows for part in (flow, flow.field) for p in part.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in inside}


def count_position_parameters(model: nn.Module) -> int:
    """Return the number of parameters of all position models, or of the flows of a plugged model.

    Example:
        >>> from floater.flow import ZeroField
        >>> count_position_parameters(FlowEncoder(ZeroField(), 2, blocks=[0], names=["q"]))
        2
    """
    flows = flow_parameters(model)
    in_flows = sum(p.numel() for name, p in model.named_parameters() if name in flows)
    return max(count_parameters(model), in_flows)


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    flow_lr_multiplier: float,
    is_flow: Callable[[str], bool],
) -> list[dict[str, Any]]:
    """Split a model's parameters into optimizer groups: the flow's and the rest.

    Biases and norms, that is all vectors and scalars, get no weight decay. Parameters that need no
    gradient and groups without parameters are excluded.

    Source: Liu et al. 2020, section 4.4 (the flow is trained with separate settings).

    Args:
        model: the model.
        lr: learning rate of the rest.
        weight_decay: weight decay of all matrices.
        flow_lr_multiplier: factor on ``lr`` that gives the flow's learning rate.
        is_flow: function that returns whether the parameter of a given name is part of the flow.

    Returns:
        At most four groups, each with "params", "lr", "weight_decay" and "flow", a bool.

    Raises:
        ValueError: a number is negative or not finite, or no parameter needs a gradient.

    Example:
        >>> model = nn.ModuleDict({"flow": nn.Linear(2, 2), "head": nn.Linear(2, 3)})
        >>> groups = parameter_groups(
        ...     model, lr=1.0, weight_decay=0.1, flow_lr_multiplier=0.5,
        ...     is_flow=lambda name: name.startswith("flow."),
        ... )
        >>> [(group["flow"], group["lr"], group["weight_decay"]) for group in groups]
        [(False, 1.0, 0.1), (False, 1.0, 0.0), (True, 0.5, 0.1), (True, 0.5, 0.0)]
    """
    numbers = {"lr": lr, "weight_decay": weight_decay, "flow_lr_multiplier": flow_lr_multiplier}
    for name, number in numbers.items():
        if not (number >= 0 and math.isfinite(number)):
            raise ValueError(f"{name} is {number}; it must be a finite number of at least 0")
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError(f"no parameter of {type(model).__name__} needs a gradient; at least one must")
    groups = [
        {
            "params": [p for name, p in trained if is_flow(name) == flow and _decays(name, p) == decays],
            "lr": lr * flow_lr_multiplier if flow else lr,
            "weight_decay": weight_decay if decays else 0.0,
            "flow": flow,
        }
        for flow in (False, True)
        for decays in (True, False)
    ]
    return [group for group in groups if group["params"]]


def _decays(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a matrix; stacked biases of several blocks have two dimensions, too."""
    return parameter.ndim > 1 and "bias" not in name.rpartition(".")[2]


def adam(
    model: nn.Module,
    args: TrainingArguments,
    *,
    is_flow: Callable[[str], bool],
    flow_lr_multiplier: float = 1.0,
) -> AdamW:
    """Return Adam, with decoupled weight decay, over the groups of ``parameter_groups``.

    The betas, epsilon, learning rate and weight decay are those of ``args``. The update is one fused
    kernel, on a GPU and on a CPU.

    Args:
        model: the model.
        args: training arguments.
        is_flow: function that returns whether the parameter of a given name is part of the flow.
        flow_lr_multiplier: factor on ``args.learning_rate`` that gives the flow's learning rate.

    Returns:
        The optimizer, for the first of a Trainer's ``optimizers``.

    Raises:
        ValueError: under the conditions of ``parameter_groups``.

    Example:
        >>> args = TrainingArguments("run", learning_rate=5e-4, adam_beta2=0.98)
        >>> optimizer = adam(nn.Linear(2, 2), args, is_flow=lambda name: False)
        >>> optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]
        (0.0005, (0.9, 0.98))
    """
    groups = parameter_groups(
        model,
        lr=args.learning_rate,
        weight_decay=args.weight_decay,
        flow_lr_multiplier=flow_lr_multiplier,
        is_flow=is_flow,
    )
    return AdamW(groups, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_epsilon, fused=True)
