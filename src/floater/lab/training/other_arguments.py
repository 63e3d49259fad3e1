"""The arguments of the Hugging Face Trainer that may be set beside the training settings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, get_type_hints

from transformers import TrainingArguments

from floater.errors import nearest
from floater.lab.settings import convert

ARGUMENTS = get_type_hints(TrainingArguments)
"""Types of all arguments of `transformers.TrainingArguments` by name."""
ALLOWED = {
    *("activation_checkpointing", "activation_checkpointing_kwargs"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode", "torch_empty_cache_steps"),
    *("use_liger_kernel", "liger_kernel_config", "fp16", "tf32", "use_cpu", "full_determinism"),
    *("accelerator_config", "ddp_backend", "ddp_timeout", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
    *("ddp_static_graph", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
    *("dataloader_multiprocessing_context", "dataloader_in_order"),
    *("neftune_noise_alpha", "include_num_input_tokens_seen", "skip_memory_metrics", "debug"),
    *("logging_first_step", "log_level", "log_level_replica", "log_on_each_node", "disable_tqdm"),
}
"""Arguments of `transformers.TrainingArguments` that may be set beside `TrainingSettings`.

The others follow from the run, or from the Trainer, optimizer and batches of this library, or break its
promises: a run that shards its weights (fsdp, deepspeed) cannot resume, and workers that persist
(dataloader_persistent_workers) keep the epoch that they began in, which masks tokens.
"""


def check_others(others: Mapping[str, Any], settings: Collection[str]) -> None:
    """Refuse arguments that may not be set, or have another type.

    Args:
        others: values of the arguments by name.
        settings: names of the settings beside which they are.

    Raises:
        ValueError: an argument is a setting, is unknown, may not be set, or has a value of another type; the
            message names it.

    Example:
        >>> check_others({"output_dir": "run"}, ["seed"])
        Traceback (most recent call last):
        ValueError: output_dir is not to be set; it follows from the run, or a run cannot have it
    """
    for name, value in others.items():
        if name in settings:
            raise ValueError(f"others has {name}, which is a setting beside it: training.{name}")
        if name not in ARGUMENTS:
            hint = nearest(name, sorted({*ALLOWED, *settings}))
            raise ValueError(f"TrainingArguments has no '{name}'; {hint}")
        if name not in ALLOWED:
            raise ValueError(f"{name} is not to be set; it follows from the run, or a run cannot have it")
        convert(ARGUMENTS[name], value, name)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}; it must be a finite number, at least 0")
