"""The final model and vocabulary of a tagging run."""

from __future__ import annotations

from pathlib import Path

import torch

from floater.encodings import catalogue
from floater.tasks.run import load_model
from floater.tasks.tagging.data import Vocabulary
from floater.transformer import FloaterForTokenClassification


def structured(position: str) -> bool:
    """Whether a position model of the catalogue reads trees or graphs.

    Example:
        >>> structured("tree"), structured("sinusoidal")
        (True, False)
    """
    return hasattr(catalogue()[position], "needs")


def load_run(
    run: str | Path, device: str | torch.device | None = None
) -> tuple[FloaterForTokenClassification, Vocabulary]:
    """The final model and the vocabulary of a run.

    Args:
        run: the run directory, or a directory with a saved model and vocabulary.
        device: where to put the model; by default a GPU if there is one.

    Returns:
        The model in evaluation mode, and its vocabulary.

    Raises:
        DataError: if the directory holds no finished run, or a broken one.
    """
    return load_model(FloaterForTokenClassification, run, device, Vocabulary.from_pretrained)
