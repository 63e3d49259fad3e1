"""The data of a training run, before and after they are encoded."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)


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


def warn_of_shared(train: Iterable[Hashable], valid: Sequence[Hashable], what: str) -> None:
    """Warn of validation examples that are training examples, too: their scores are no measure of a model.

    Args:
        train: what identifies each training example.
        valid: what identifies each validation example.
        what: noun for the examples, in the plural.
    """
    trained = {*valid}.intersection(train)
    if shared := sum(example in trained for example in valid):
        count = f"{shared:,} of {len(valid):,}"
        logger.warning("%s validation %s are in the training data, too", count, what)
