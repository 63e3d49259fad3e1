"""The data of a training run, before and after they are encoded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

logger = logging.getLogger(__name__)

Example = TypeVar("Example")


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


def warn_of_shared(
    train: Iterable[Example], valid: Iterable[Example], key: Callable[[Example], Hashable], what: str
) -> None:
    """Warn of validation examples that are training examples, too: their scores are no measure of a model.

    Args:
        train: training examples.
        valid: validation examples.
        key: function from an example to what identifies it.
        what: noun for the examples, in the plural.
    """
    asked = [key(example) for example in valid]
    trained = {*asked}.intersection(map(key, train))
    if shared := sum(example in trained for example in asked):
        count = f"{shared:,} of {len(asked):,}"
        logger.warning("%s validation %s are in the training data, too", count, what)
