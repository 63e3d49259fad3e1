"""Adam with the settings of the training arguments."""

from collections.abc import Callable

from torch import nn
from torch.optim import AdamW
from transformers import TrainingArguments

from floater.lab.training.flow import parameter_groups


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
