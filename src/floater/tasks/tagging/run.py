"""The final model and vocabulary of a tagging run."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError

from floater.encodings import catalogue
from floater.tasks.tagging.data import Vocabulary
from floater.tasks.text import DataError
from floater.tasks.translation.run import MODEL, fill
from floater.training import average
from floater.transformer import FloaterConfig, FloaterForTokenClassification


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
    folder = Path(run) / MODEL if (Path(run) / MODEL).is_dir() else Path(run)
    if not (folder / "config.json").is_file():
        raise DataError(f"{run} holds no trained model; a finished run has {Path(run) / MODEL}/config.json")
    vocabulary = Vocabulary.from_pretrained(folder)
    try:
        model = FloaterForTokenClassification(FloaterConfig.from_pretrained(folder))
        fill(model, average([folder]), str(folder))
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder} holds no model that can be loaded: {error}") from error
    own = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    model.to(torch.device(device or own or "cpu"))  # type: ignore[arg-type] # transformers hides torch's signature
    return model.train(False), vocabulary
