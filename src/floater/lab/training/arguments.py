"""Trainer arguments from training settings: batches, learning rates, `TrainingArguments`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, TrainingArguments

from floater.errors import DataError, first_line
from floater.flow import FlowEncoder
from floater.lab.training.batches import BatchSampler, ExampleBatchSampler, TokenBatchSampler
from floater.lab.training.other_arguments import check_machine
from floater.lab.training.schedule import inverse_sqrt, transformers_schedule
from floater.lab.training.settings import TrainingSettings


def batches(
    training: TrainingSettings, lengths: Sequence[int], world_size: int = 1, rank: int = 0
) -> BatchSampler:
    """Return the training batches of the settings: batches of a number of examples, or of a number of tokens.

    Example:
        >>> list(batches(TrainingSettings(per_device_train_batch_size=2), [5, 5]))
        [[0, 1]]
    """
    shared: dict[str, Any] = {"seed": training.seed, "shuffle": True, "world_size": world_size, "rank": rank}
    if training.per_device_train_batch_size is None:
        return TokenBatchSampler(lengths, training.max_tokens, **shared)
    return ExampleBatchSampler(lengths, training.per_device_train_batch_size, **shared)


def schedule(training: TrainingSettings, optimizer: Optimizer, batches: int) -> LambdaLR:
    """Return the learning rate schedule of the settings.

    Args:
        training: the settings.
        optimizer: the optimizer, whose learning rates are the peak rates.
        batches: number of batches in an epoch.
    """
    warmup, total = warmup_steps(training, batches)
    name, initial = training.lr_scheduler_type, training.initial_learning_rate
    if name == "inverse_sqrt":
        return inverse_sqrt(optimizer, warmup=max(1, warmup), initial=initial)
    name = "constant_with_warmup" if name == "constant" else name
    return transformers_schedule(name, optimizer, warmup=warmup, total=total, initial=initial)


def warmup_steps(training: TrainingSettings, batches: int) -> tuple[int, int]:
    """Return the numbers of warm-up steps and of training steps, given the number of batches in an epoch.

    Raises:
        DataError: if a schedule that ends at 0 has no steps left after the warm-up, or the processes cannot
            share the batches of a step.

    Example:
        >>> warmup_steps(TrainingSettings(warmup_steps=0.1, num_train_epochs=2), batches=41)
        (8, 82)
    """
    try:
        parts = training.accumulation(PartialState().num_processes)
    except ValueError as error:
        raise DataError(str(error)) from error
    total = training.max_steps or training.num_train_epochs * -(-batches // parts)
    steps = training.warmup_steps
    warmup = int(steps * total if steps < 1 else steps)
    is_endless = training.lr_scheduler_type in ("inverse_sqrt", "constant", "constant_with_warmup")
    if not is_endless and warmup >= total:
        raise DataError(f"training.warmup_steps is {warmup}; it must be below the training's {total} steps")
    return warmup, total


def arguments(
    training: TrainingSettings,
    run: Path,
    model: PreTrainedModel,
    best: str | None,
    greater: bool,
) -> TrainingArguments:
    """Return the Trainer's arguments for training settings.

    Args:
        training: the settings.
        run: directory of the run.
        model: model to train.
        best: metric whose best checkpoint is kept in addition to the last ones; None to keep no best one.
        greater: True if higher values of the metric are better.

    Raises:
        DataError: if `TrainingArguments` refuses one of the settings' `others`, or this machine cannot serve
            it.
    """
    others: dict[str, Any] = {
        "use_cache": True,  # else the Trainer turns the key/value cache off in the model's configuration
        "use_cpu": not torch.accelerator.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
        **training.others,
    }
    try:
        args = TrainingArguments(
            output_dir=str(run),
            num_train_epochs=training.num_train_epochs,
            max_steps=training.max_steps or -1,
            learning_rate=training.learning_rate,
            weight_decay=training.weight_decay,
            adam_beta1=training.adam_beta1,
            adam_beta2=training.adam_beta2,
            adam_epsilon=training.adam_epsilon,
            max_grad_norm=training.max_grad_norm,
            gradient_accumulation_steps=training.accumulation(PartialState().num_processes),
            label_smoothing_factor=getattr(training, "label_smoothing_factor", 0.0),
            bf16=training.bf16,
            seed=training.seed,
            logging_steps=training.logging_steps,
            logging_nan_inf_filter=False,  # the filter would log a loss that is not finite as 0
            report_to="none",
            eval_strategy=_strategy(training.evaluates),
            eval_steps=_steps(training.evaluates),
            save_strategy=_strategy(training.saves),
            save_steps=_steps(training.saves) or 500,
            save_total_limit=training.save_total_limit,
            metric_for_best_model=best,
            greater_is_better=None if best is None else greater,
            remove_unused_columns=False,
            ddp_find_unused_parameters=_sometimes_unused(model),
            **others,
        )
    except (ImportError, OSError, TypeError, ValueError) as error:  # by the settings' `others`
        raise DataError(f"training: {first_line(error)}") from error
    check_machine(args)
    return args


def _sometimes_unused(model: PreTrainedModel) -> bool:
    """Return whether some parameters get no gradient in some steps, as those of a reused flow."""
    return any(isinstance(module, FlowEncoder) and module.refresh_every > 1 for module in model.modules())


def _strategy(every: int | str) -> str:
    return "steps" if isinstance(every, int) else every


def _steps(every: int | str) -> int | None:
    return every if isinstance(every, int) else None
