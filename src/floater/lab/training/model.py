"""The model of a run: its weights, its vocabulary, its reading rule, and its evaluation."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from floater import transformer
from floater.encodings.stored import baked_vectors
from floater.errors import DataError, first_line
from floater.lab.training.averaging import average
from floater.lab.training.files import MANIFEST, sealed
from floater.lab.training.run import MODEL, SETTINGS, RunPath, inside
from floater.pretrained.weight_names import rename_weights
from floater.transformer import FloaterConfig
from floater.transformer.base import FloaterPreTrainedModel
from floater.transformer.reading import Reading, check_reading

logger = logging.getLogger(__name__)
_Model = TypeVar("_Model", bound=PreTrainedModel)


def load_model(
    build: Callable[[Path], _Model],
    run: RunPath,
    device: str | torch.device | None = None,
    *,
    read: Callable[[Path], Any],
) -> tuple[_Model, Any]:
    """Return the final model and the vocabulary of a run.

    Args:
        build: function that builds the model from the configuration in a directory, such as `configured`
            returns.
        run: run directory, or a directory with a saved model and tokenizer.
        device: device of the model; by default a GPU if there is one.
        read: function that reads the vocabulary from a directory.

    Returns:
        The model in evaluation mode, and its vocabulary.

    Raises:
        DataError: if the directory contains no finished run, or a model that is damaged or not as it was
            written.
    """
    folder = inside(Path(run), MODEL)
    if not (folder / "config.json").is_file():
        raise DataError(f"{run} holds no trained model; a finished run has {Path(run) / MODEL}/config.json")
    vocabulary = read(sealed_model(folder))
    try:
        model: Any = build(folder)
        load_weights(model, average([folder]), str(folder))
    except (OSError, SafetensorError, StrictDataclassError, json.JSONDecodeError) as error:
        raise DataError(f"{folder} holds no model that can be loaded: {first_line(error)}") from error
    return model.to(available_device(device)).train(False), vocabulary


def available_device(name: str | torch.device | None = None) -> torch.device:
    """Return the device of a name; without a name, a GPU if there is one.

    Raises:
        DataError: if there is no such device here.

    Example:
        >>> available_device("tape")
        Traceback (most recent call last):
        floater.errors.DataError: device 'tape' is not available; there are: ...
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    try:
        device = torch.device(name or accelerator or "cpu")
        torch.empty(1, device=device).item()  # "meta" has no values
    except (RuntimeError, AssertionError, NotImplementedError):
        names = ["cpu", *([accelerator.type] if accelerator else [])]
        raise DataError(f"device '{name}' is not available; there are: {', '.join(names)}") from None
    return device


def sealed_model(folder: Path) -> Path:
    """Return the directory of a model after checking its seal; warn of the model of a run that has no seal.

    Raises:
        DataError: if a file is missing, changed or added.
    """
    if not (folder / MANIFEST).exists() and (folder.parent / SETTINGS).is_file():
        logger.warning("%s has no %s: nothing shows that it is what the run trained", folder, MANIFEST)
    return sealed(folder)


def configured(kind: Callable[[FloaterConfig], _Model]) -> Callable[[Path], _Model]:
    """Return a function that builds a model of this library from the configuration in a directory.

    The function does not load the model's weights.

    Args:
        kind: function that builds the model from a `FloaterConfig`, such as the class of the model.
    """

    def build(folder: Path) -> _Model:
        tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        type_ = tree.get("model_type") if isinstance(tree, dict) else None
        config: type[FloaterConfig] = getattr(kind, "config_class", FloaterConfig)
        if type_ != config.model_type:
            raise DataError(f"{folder} holds a model of type {type_!r}, not {config.model_type!r}")
        model = kind(config.from_pretrained(folder))
        stored, needed = (tree.get("architectures") or [""])[0], type(model).__name__
        if stored != needed and stored in transformer.__all__:
            raise DataError(f"{folder} holds a {stored}; this task needs a {needed}")
        return model

    return build


def load_weights(
    model: PreTrainedModel,
    weights: Mapping[str, Tensor],
    origin: str,
    may_lack: Callable[[str], bool] = lambda name: False,
) -> None:
    """Load weights into a model, all or none.

    Args:
        model: model that gets the weights.
        weights: state dict, or the tensors of a file; tied tensors may occur once.
        origin: source of the weights, for messages.
        may_lack: function that returns whether the parameter of a given name may be absent in the weights;
            the model then keeps it.

    Raises:
        DataError: if names or shapes are not those of the model.
    """
    weights = rename_weights(model, weights)
    expected, tied = model.state_dict(), model.all_tied_weights_keys
    for name in {**expected, **weights}:
        here, there = (
            tuple(state[name].shape) if name in state else "absent" for state in (expected, weights)
        )
        if here != there and not (there == "absent" and (name in tied or may_lack(name))):
            raise DataError(f"{origin} does not fit: {name} is {there} there and {here} here")
    model.load_state_dict(weights, strict=False)
    model.tie_weights()


def set_reading(model: FloaterPreTrainedModel, reading: Any) -> None:
    """Set the reading rule of a trained model, if one is given.

    Args:
        model: trained model.
        reading: any argument of `Reading.of`; None keeps the model's own rule.

    Raises:
        PositionError: if a value is not valid, or the model does not support the rule.
        DataError: if the model is not a Transformer of this library.

    Example:
        >>> from floater.transformer import FloaterForMaskedLM
        >>> model = FloaterForMaskedLM(FloaterConfig.preset("tiny", vocab_size=99, position="t5"))
        >>> set_reading(model, "group=32:4")
        >>> model.config.reading
        {'group': (32, 4)}
    """
    if reading is None:
        return
    rule = Reading.of(reading)
    if not isinstance(model.config, FloaterConfig):
        raise DataError(f"a reading is for the Transformer of this library, not for {type(model).__name__}")
    body: Any = model.base_model
    check_reading(rule, body.encoder.position, model.config)
    options = {field.name: getattr(rule, field.name) for field in fields(rule)}
    model.config.reading = {name: value for name, value in options.items() if value not in (None, False)}


@torch.no_grad()
def try_random_times(model: PreTrainedModel, batch: Mapping[str, Any]) -> None:
    """Run a copy of a model in training mode if it has random times, which may have no room for a text.

    Raises:
        PositionError: if a text of the batch is longer than the horizon of the times.
    """
    if getattr(model.config, "times", None) is not None:
        with torch.random.fork_rng(devices=[]):
            copy.deepcopy(model).train()(**batch)


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch modules to evaluation mode, then back to the mode that each was in.

    Example:
        >>> layer = nn.Dropout()
        >>> with eval_mode(layer):
        ...     layer.training
        False
        >>> layer.training
        True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.train(False)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def inference(model: nn.Module, *, baked: bool = False) -> Iterator[None]:
    """Switch to evaluation mode without gradients until the end of the block, then restore each mode.

    No random numbers are used, so that the block does not change training.

    Args:
        model: model in any mode.
        baked: True to compute vectors of positions alone, as those of flows, once for all batches, if
            positions count tokens. Those of flows then differ in their last bits from those of a batch.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> with inference(layer):
        ...     layer.training
        False
        >>> layer.training
        True
    """
    # position vectors do not depend on the data
    with eval_mode(model), torch.no_grad(), baked_vectors(model) if baked else contextlib.nullcontext():
        yield
