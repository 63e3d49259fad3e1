"""Longer inputs for a checkpoint that is trained: the extension, random positions, what learns."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import floater
from floater.errors import DataError, first_line
from floater.pretrained import FAMILIES
from floater.pretrained.extending import position_parameters, training_spans
from floater.training.run_trainer import RunTrainer
from floater.training.settings import check_numbers

logger = logging.getLogger(__name__)
Rows = Sequence[dict[str, Any]]
_Trainer = TypeVar("_Trainer", bound=RunTrainer)


@dataclass(frozen=True)
class Extend:
    """More context for the checkpoint, before training (`floater.extend`).

    Attributes:
        length: tokens that the model is to take; null leaves it as it is.
        method: how, by a name of `floater.extend`; null takes the default of the model's positions.
        options: of the method, as in {start: linear}.
        positions: of training rows: "consecutive", or "pose": two parts of a row, the second moved by a
            random number of positions below `length`, so that rows of few tokens train long distances.
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
    """Low-rank adapters that learn instead of the checkpoint's matrices (Hu et al. 2022, LoRA), with `peft`.

    Attributes:
        r: rank.
        lora_alpha: the product of the two matrices is multiplied by lora_alpha / r.
        lora_dropout: before the first.
        target_modules: names of the layers; null takes those that `peft` has for the model.
    """

    r: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.0
    target_modules: list[str] | None = None

    def __post_init__(self) -> None:
        check_numbers(self, r=1, lora_alpha=1, lora_dropout=0)


def extend(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, asked: Extend) -> None:
    """Extend a checkpoint's model as the settings ask, and let its tokenizer know.

    Raises:
        DataError: if the model cannot be extended so.
    """
    if asked.length is None:
        return
    try:
        done = floater.extend(model, asked.length, asked.method, **asked.options)
    except (TypeError, ValueError) as error:
        raise DataError(f"extend: {first_line(error)}") from error
    tokenizer.model_max_length = asked.length
    logger.info("extended: %s", done)


def learn(model: PreTrainedModel, what: Literal["all", "lora", "positions"], adapter: Adapter) -> None:
    """Choose what of a model is trained; positions are in any case.

    Args:
        model: changed in place.
        what: "all", or "lora": adapters in place of the model's own matrices, or "positions" alone.
        adapter: of "lora".

    Raises:
        DataError: if `peft` knows no layers of such a model, or nothing is left to be trained.
    """
    if what == "all":
        return
    positions = position_parameters(model)
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


def merge(model: nn.Module) -> None:
    """Put adapters into the matrices that they belong to; nothing is left of them."""
    from peft.tuners.lora import LoraLayer

    for path, layer in [(p, m) for p, m in model.named_modules() if isinstance(m, LoraLayer)]:
        holder, _, name = path.rpartition(".")
        layer.merge()
        setattr(model.get_submodule(holder), name, layer.get_base_layer())
    for name in ("peft_config", "_hf_peft_config_loaded"):
        model.__dict__.pop(name, None)


def pose(tokens: int, length: int, rng: np.random.Generator) -> np.ndarray:
    """Generate the positions of a row (Zhu et al. 2024, "PoSE: Efficient Context Window Extension").

    The first part, of 1 to about half of the tokens, stands at the beginning; the second is moved by a
    uniform number of positions, so that it ends below `length`. That is the released code, with the text
    itself left whole.

    Args:
        tokens: of the row.
        length: positions that there are.
        rng: of the random numbers.

    Returns:
        (tokens,) rising.

    Example:
        >>> places = pose(6, 100, np.random.default_rng(0))
        >>> int(places[0]), bool((np.diff(places) >= 1).all()), (np.diff(places) > 1).sum() <= 1
        (0, True, np.True_)
    """
    places = np.arange(tokens)
    if tokens > 1:
        first = rng.integers(1, (tokens + 1) // 2 + 1)
        places[first:] += rng.integers(0, max(0, length - tokens) + 1)
    return places


def training_positions(trainer: _Trainer, settings: Any) -> _Trainer:
    """Give the batches of a training random positions if the settings ask for them.

    The positions of a row depend on the seed, the epoch and the row alone; those of a model that rotates a
    text by its length also on the first row of the batch, which decides how far the batch reaches.

    Args:
        trainer: of rows with an `index`; changed in place.
        settings: of the run.

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
        # without a mask, Transformers takes positions that jump for the begin of another document
        return {"attention_mask": torch.ones_like(ids), **batch, "position_ids": ids}

    trainer.data_collator = collate
    return trainer


def first_position(model: PreTrainedModel) -> int:
    """Return the number that a model gives to the first position: RoBERTa's come after that of padding."""
    family = FAMILIES.get(str(model.config.model_type))
    return 0 if family is None or family.padding is None else family.padding(model.base_model) + 1
