"""Updates of a flow in every k-th training step."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class FlowSchedule(TrainerCallback):
    """Update the flow every k-th step, with the mean gradient of the k steps.

    Between updates, the flow's gradients are accumulated apart and its parameters have no gradient, so
    that the optimizer does not change them. If training ends between updates, the last step updates the
    flow with the mean gradient of the steps since its last update. Clipping by ``max_grad_norm`` is
    applied before, to the gradient of all parameters of each step.

    Checkpoints do not contain the accumulated gradients, so they must be saved on multiples of k.

    Source: Liu et al. 2020, section 4.4 (the flow is updated less often than the rest).

    Args:
        update_every: k, at least 1. The flow's parameters are those of the optimizer's groups with a
            true "flow", as ``parameter_groups`` returns them.

    Raises:
        ValueError: ``update_every`` is below 1; or, when training starts and it is above 1: the
            optimizer has no flow, checkpoints would be saved or training resumed between updates of
            the flow, or training is in fp16, which skips updates.

    Example:
        >>> FlowSchedule(update_every=5).update_every
        5
    """

    def __init__(self, update_every: int) -> None:
        if update_every < 1:
            raise ValueError(f"update_every is {update_every} steps; it must be at least 1")
        self.update_every = update_every
        self._aside: dict[Tensor, Tensor] = {}
        self._steps = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that the training allows updates of the flow every k-th step."""
        if self.update_every == 1:
            return
        self._aside.clear()
        self._steps = 0
        if not _flow(kwargs["optimizer"]):
            raise ValueError(
                f"update_every is {self.update_every}, but the optimizer has no group with a true 'flow'"
            )
        if args.fp16:
            raise ValueError(
                f"fp16 skips updates, so update_every must be 1, not {self.update_every}; bf16 does not"
            )
        if args.save_strategy not in ("no", "steps"):
            raise ValueError(
                f"save_strategy is {args.save_strategy}, which may save between updates of the flow; with "
                f"update_every {self.update_every} it must be 'steps' or 'no'"
            )
        if args.save_strategy == "steps" and state.save_steps % self.update_every:
            raise ValueError(
                f"save_steps is {state.save_steps}; it must be a multiple of update_every = "
                f"{self.update_every}"
            )
        if state.global_step % self.update_every and state.global_step < state.max_steps:
            raise ValueError(
                f"cannot resume from step {state.global_step}: the flow's gradients are complete only "
                f"on multiples of update_every = {self.update_every}"
            )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Accumulate the flow's gradients, or set them to their mean for the update."""
        if self.update_every == 1:
            return
        step = state.global_step + 1
        self._steps += 1
        for parameter in _flow(kwargs["optimizer"]):
            if parameter.grad is not None:
                aside = self._aside.get(parameter)
                self._aside[parameter] = (
                    parameter.grad.clone() if aside is None else aside.add_(parameter.grad)
                )
                parameter.grad = None
        if step % self.update_every and step < state.max_steps:
            return
        for parameter, total in self._aside.items():
            parameter.grad = total.div_(self._steps)
        self._aside = {}
        self._steps = 0


def _flow(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups if group.get("flow") for p in group["params"]]
