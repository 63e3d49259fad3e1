"""The data of a training run, before and after they are encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Splits(NamedTuple):
    """Training and validation examples before they are encoded."""

    train: Any
    valid: Any


@dataclass
class Prepared:
    """Inputs of a training run: settings, processor, model and encoded examples.

    Args:
        settings: settings of the run.
        processor: vocabulary, tokenizer or other object that turns examples into the model's inputs.
        model: model before its first training step.
        train: encoded training examples.
        valid: encoded validation examples.
    """

    settings: Any
    processor: Any
    model: Any
    train: Any
    valid: Any
