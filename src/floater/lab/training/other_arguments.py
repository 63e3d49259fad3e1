"""The arguments of the Hugging Face Trainer that may be set beside the training settings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, get_type_hints

from transformers import TrainingArguments
from transformers.debug_utils import DebugOption
from transformers.utils.import_utils import is_liger_kernel_available

from floater.errors import DataError, nearest
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


_LEVELS = ("debug", "info", "warning", "error", "critical", "passive")
CHOICES: dict[str, tuple[Any, ...]] = {
    "ddp_backend": ("gloo", "nccl", "mpi", "xccl", "hccl"),
    "torch_compile_backend": ("inductor", "eager", "aot_eager", "cudagraphs"),
    "torch_compile_mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    "dataloader_multiprocessing_context": ("fork", "spawn", "forkserver"),
    "include_num_input_tokens_seen": (True, False, "all", "non_padding", "no"),
    "log_level": _LEVELS,
    "log_level_replica": _LEVELS,
}
"""Valid values, without further packages, of arguments that Transformers checks as the training begins."""
_SWITCHES = {
    "activation_checkpointing_kwargs": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "gradient_checkpointing",
    "liger_kernel_config": "use_liger_kernel",
    "dataloader_multiprocessing_context": "dataloader_num_workers",
    "dataloader_prefetch_factor": "dataloader_num_workers",
}
"""By the name of an argument, the one without which it is not read."""
_CHECKPOINTING = ("use_reentrant", "preserve_rng_state", "determinism_check", "early_stop", "every_n_layers")


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
        if value is not None and value not in CHOICES.get(name, (value,)):
            valid = ", ".join(map(str, CHOICES[name]))
            raise ValueError(f"{name} is {value!r}; it must be one of: {valid}")
        if name.endswith("checkpointing_kwargs") and value is not None:
            _check_checkpointing(name, value)
        switch = _SWITCHES.get(name)
        if value is not None and switch is not None and not others.get(switch):
            raise ValueError(f"{name} is {value!r}, which only {switch} reads; set that, or leave this out")
    if others.get("dataloader_prefetch_factor") == 0:
        raise ValueError("dataloader_prefetch_factor is 0; it must be at least 1")


def _check_checkpointing(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {value!r}; it must be a mapping, as in {{preserve_rng_state: false}}")
    if unknown := sorted(map(str, {*value} - {*_CHECKPOINTING})):
        raise ValueError(f"{name} has '{unknown[0]}'; {nearest(unknown[0], _CHECKPOINTING)}")
    if value.get("use_reentrant"):
        raise ValueError(
            f"{name} has use_reentrant true; the blocks share what the position model prepared, which needs "
            "false, the default"
        )


def check_machine(args: TrainingArguments) -> None:
    """Refuse arguments that need a package or a device that is missing here.

    Args:
        args: all arguments of the Trainer.

    Raises:
        DataError: an argument cannot be served, or would do nothing; the message names it.
    """
    if args.use_liger_kernel and not is_liger_kernel_available():
        raise DataError(
            "training.use_liger_kernel is True, which needs liger-kernel, at least 0.3.0; type: "
            "pip install liger-kernel"
        )
    if args.fp16 and args.device.type == "cpu":
        raise DataError(
            "training.fp16 is True, which only a GPU reads: a CPU would compute in float32; leave it out, or "
            "set training.bf16"
        )
    if DebugOption.TPU_METRICS_DEBUG in args.debug and args.device.type != "xla":
        raise DataError("training.debug is 'tpu_metrics_debug', which only a TPU reads; leave it out")
