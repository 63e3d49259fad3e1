"""Longer inputs for a checkpoint in training: the extension, random positions, the trained parameters."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import floater
from floater.errors import DataError, first_line
from floater.lab.training.run_trainer import RunTrainer
from floater.lab.training.settings import check_numbers
from floater.pretrained.extending import trained_positions, training_spans
from floater.pretrained.families import padding_of_table

logger = logging.getLogger(__name__)
Rows = Sequence[dict[str, Any]]
_Trainer = TypeVar("_Trainer", bound=RunTrainer)


@dataclass(frozen=True)
class Extend:
    """Extension of the checkpoint's context before training (`floater.extend`).

    Attributes:
        length: number of tokens that the extended model takes; null for no extension.
        method: name of a method of `floater.extend`; null takes the default of the model's positions.
        options: options of the method, as in {start: linear}.
        positions: positions of training rows: "consecutive", or "pose": two parts of a row, the second
            shifted by a random number of positions within `length`, so that short rows train long distances.
    """

    length: int | None = None
    method: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    positions: Literal["consecutive", "pose"] = "consecutive"

    def __post_init__(self) -> None:
        check_numbers(self, length=1)
        if self.length is None and (self.method is not None or self.options):
            raise ValueError("method and options of extend need length, the tokens that the model is to take")


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters trained in place of the checkpoint's matrices (Hu et al. 2022, LoRA), with `peft`.

    Attributes:
        r: rank of the adapters.
        lora_alpha: numerator of the factor lora_alpha / r of the product of the two matrices.
        lora_dropout: dropout before the first matrix.
        target_modules: names of the adapted layers; null takes the defaults of `peft` for the model.
    """

    r: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.0
    target_modules: list[str] | None = None

    def __post_init__(self) -> None:
        check_numbers(self, r=1, lora_alpha=1, lora_dropout=0)


def extend(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Extend) -> None:
    """Extend a checkpoint's model as the settings define, and set the maximum length of its tokenizer.

    Raises:
        DataError: if the model cannot be extended in this way.
    """
    if settings.length is None:
        return
    try:
        done = floater.extend(model, settings.length, settings.method, **settings.options)
    except (TypeError, ValueError) as error:
        raise DataError(f"extend: {first_line(error)}") from error
    tokenizer.model_max_length = settings.length
    logger.info("extended: %s", done)


def learn(model: PreTrainedModel, what: Literal["all", "lora", "positions"], adapter: Adapter) -> None:
    """Choose the trained parameters of a model; positions are always trained.

    Args:
        model: model, changed in place.
        what: trained parameters: "all", or "lora", adapters in place of the model's matrices, or "positions"
            alone.
        adapter: settings of the adapters for "lora".

    Raises:
        DataError: if `peft` has no default layers for the model, or no parameter is left to train.
    """
    if what == "all":
        return
    positions = trained_positions(model)
    if what == "positions" and not positions:
        raise DataError(
            f"train is 'positions', but {type(model).__name__} has no positions that could be trained; "
            "extend it by 'clex' or by a flow, or plug it"
        )
    model.requires_grad_(False)
    if what == "lora":
        from peft import LoraConfig, inject_adapter_in_model

        targets = adapter.target_modules
        config = LoraConfig(
            r=adapter.r,
            lora_alpha=adapter.lora_alpha,
            lora_dropout=adapter.lora_dropout,
            target_modules=targets,
        )
        try:
            inject_adapter_in_model(config, model)
        except (TypeError, ValueError) as error:
            raise DataError(f"lora: {first_line(error)}") from error
    for parameter in positions:
        parameter.requires_grad_(True)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    shares = f"{trained:,} of {total:,} parameters ({100 * trained / total:.2f} %)"
    logger.info(
        "trained: %s; %s of positions%s", shares, f"{sum(p.numel() for p in positions):,}", _adapted(model)
    )


def _adapted(model: nn.Module) -> str:
    """Return a text that names the layers with adapters."""
    adapted = [name for name, module in model.named_modules() if hasattr(module, "lora_A")]
    kinds = Counter(name.rpartition(".")[2] for name in adapted)
    names = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"; adapters in {len(adapted)} layers: {names}" if adapted else ""


def save_adapter(model: nn.Module, folder: Path, base: str) -> None:
    """Save the adapters of a model in the format of `peft`, for `PeftModel.from_pretrained`.

    Args:
        model: model with adapters.
        folder: new directory.
        base: location of the checkpoint without adapters.
    """
    from peft import get_peft_model_state_dict

    config: Any = model.peft_config["default"]  # type: ignore[index]
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(str(folder))
    states = {f"base_model.model.{k}": v.contiguous() for k, v in get_peft_model_state_dict(model).items()}
    save_file(states, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def merge(model: nn.Module) -> None:
    """Merge adapters into their matrices, and remove them."""
    from peft.tuners.lora import LoraLayer

    for path, layer in [(p, m) for p, m in model.named_modules() if isinstance(m, LoraLayer)]:
        holder, _, name = path.rpartition(".")
        layer.merge()
        setattr(model.get_submodule(holder), name, layer.get_base_layer())
    for name in ("peft_config", "_hf_peft_config_loaded"):
        model.__dict__.pop(name, None)


def pose(tokens: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Generate the positions of a row (Zhu et al. 2024, "PoSE: Efficient Context Window Extension").

    The first part, of 1 to about half of the tokens, starts at position 0; the second is shifted by a
    uniformly distributed number of positions, so that it ends below `length`. This follows the released code,
    except that the text itself is not split.

    Args:
        tokens: number of tokens of the row.
        length: number of positions.
        rng: random number generator.

    Returns:
        The positions, (tokens,), strictly increasing.

    Example:
        >>> positions = pose(6, 100, np.random.default_rng(0))
        >>> int(positions[0]), bool((np.diff(positions) >= 1).all()), (np.diff(positions) > 1).sum() <= 1
        (0, True, np.True_)
    """
    positions = np.arange(tokens)
    if tokens > 1:
        first = rng.integers(1, (tokens + 1) // 2 + 1)
        positions[first:] += rng.integers(0, max(0, length - tokens) + 1)
    return positions


def training_positions(trainer: _Trainer, settings: Any) -> _Trainer:
    """Add random positions to the training batches if the settings ask for them.

    The positions of a row depend only on the seed, the epoch and the row. For a model whose rotation depends
    on the length of the text, they also depend on the first row of the batch, which determines the span of
    the batch.

    Args:
        trainer: Trainer whose rows have an `index`; changed in place.
        settings: settings of the run.

    Raises:
        DataError: if the model takes no positions.
    """
    if settings.extend.positions == "consecutive":
        return trainer
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    length = settings.extend.length or int(model.config.max_position_embeddings)
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise DataError(
            f"extend.positions is 'pose', but {type(model).__name__} forwards no position_ids to its blocks; "
            "use 'consecutive'"
        )
    spans, first = training_spans(model, length), first_position(model)
    make: Callable[..., Any] = trainer.data_collator

    def collate(rows: Rows) -> dict[str, Tensor]:
        batch = make(rows)
        ids = torch.full_like(batch["input_ids"], first)
        seed = trainer.args.seed, trainer.sampler.epoch
        span = int(np.random.default_rng((*seed, rows[0]["index"], len(spans))).choice(spans))
        for row, example in zip(ids, rows, strict=True):
            rng = np.random.default_rng((*seed, example["index"]))
            count = len(example["input_ids"])
            row[:count] = torch.from_numpy(pose(count, span, rng)) + first
        # without a mask, Transformers takes a jump in the positions for the beginning of another document
        return {"attention_mask": torch.ones_like(ids), **batch, "position_ids": ids}

    trainer.data_collator = collate
    return trainer


def first_position(model: PreTrainedModel) -> int:
    """Return the index of a model's first position; RoBERTa's positions follow that of padding."""
    padding = padding_of_table(model.base_model)
    return 0 if padding is None else padding + 1
