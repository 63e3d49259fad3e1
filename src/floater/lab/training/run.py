"""The directory of a run of any task: settings, vocabulary, log, checkpoints, final model."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from floater.errors import DataError, first_line
from floater.flow import FlowEncoder
from floater.lab.settings import dump, make, read
from floater.lab.training import run_data
from floater.lab.training.averaging import average
from floater.lab.training.files import MANIFEST, UNFINISHED, save_whole, sealed, write_whole
from floater.lab.training.lock import LOCK
from floater.pretrained.weight_names import rename_weights
from floater.transformer import FloaterConfig
from floater.transformer.base import FloaterPreTrainedModel
from floater.transformer.reading import Reading, check_reading

SETTINGS, MODEL, LOG, RESULT = "config.yaml", "model", "log.json", "result.json"
VOCABULARY = run_data.VOCABULARY
LONGEST = "longest"
"""Key in `RESULT` of the length of the longest training example, in tokens or the unit of the lengths."""
logger = logging.getLogger(__name__)
RunPath = str | os.PathLike[str]
_Model = TypeVar("_Model", bound=PreTrainedModel)


@dataclass(frozen=True)
class RunWithSettings(os.PathLike[str]):
    """A run directory with its settings, so that functions of the directory need not read them again.

    Args:
        path: path of the directory.
        settings: settings of the run.

    Example:
        >>> Path(RunWithSettings(Path("runs"), None), "mine").parts
        ('runs', 'mine')
    """

    path: Path
    settings: Any

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__


def find_run(settings: Any, *, accept_changed_data: bool = False) -> Path:
    """Return the directory of a run after checking its settings; nothing is written.

    Paths of files may differ from those of the run if the files hold the same.

    Args:
        settings: settings of the run.
        accept_changed_data: whether other files may hold something else.

    Returns:
        A directory that is empty, does not exist yet, or contains a run with these settings.

    Raises:
        DataError: if the directory contains something else, a run with other settings, or one that began
            with other files.
        SettingsError: if the settings in the directory cannot be read.
    """
    run = Path(settings.run)
    if run.exists() and not run.is_dir():
        raise DataError(f"{run} is a file; a run needs a directory")
    if (run / SETTINGS).is_file():
        tree = read(run / SETTINGS)
        if (task := tree.get("task", settings.task)) != settings.task:
            raise DataError(f"{run} holds a run of task {task!r}, not {settings.task!r}")
        before = make(type(settings), tree, str(run / SETTINGS))
        if any(differences(before, settings)):
            data = run_data.RunData(run, settings, accept=accept_changed_data)
            if changes := list(differences(before, settings, data.names)):
                raise DataError(f"{run} holds a run with other settings: {'; '.join(changes)}")
            data.check()
    elif run.is_dir() and any(
        not path.name.endswith(UNFINISHED) and not path.name.startswith(LOCK) for path in run.iterdir()
    ):
        raise DataError(f"{run} is not empty and holds no run (no {SETTINGS}); choose another directory")
    return run


def begin_run(run: Path, settings: Any, tokenizer: Any, record: Callable[[], None] = lambda: None) -> None:
    """Write settings and vocabulary into the directory of a run, unless they exist.

    Args:
        run: directory of the run.
        settings: settings of the run; those in the directory are replaced if they name the files otherwise.
        tokenizer: vocabulary of the run.
        record: function that writes the record of the data, before the vocabulary that is made of them, and
            again with it.
    """
    run.mkdir(parents=True, exist_ok=True)
    text, file = dump(settings), run / SETTINGS
    if not file.is_file() or any(differences(make(type(settings), read(file), str(file)), settings)):
        write_whole(file, text)
    record()
    if not (run / VOCABULARY).is_dir():
        save_whole(run / VOCABULARY, tokenizer)
        record()


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
        fill(model, average([folder]), str(folder))
    except (OSError, SafetensorError, StrictDataclassError, json.JSONDecodeError) as error:
        raise DataError(f"{folder} holds no model that can be loaded: {first_line(error)}") from error
    own = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    return model.to(torch.device(device or own or "cpu")).train(False), vocabulary


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
        return kind(config.from_pretrained(folder))

    return build


def fill(
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
    known, tied = model.state_dict(), model.all_tied_weights_keys
    for name in {**known, **weights}:
        here, there = (tuple(state[name].shape) if name in state else "absent" for state in (known, weights))
        if here != there and not (there == "absent" and (name in tied or may_lack(name))):
            raise DataError(f"{origin} does not fit: {name} is {there} there and {here} here")
    model.load_state_dict(weights, strict=False)
    model.tie_weights()


def read_by(model: FloaterPreTrainedModel, reading: Any) -> None:
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
        >>> read_by(model, "group=32:4")
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
    given = {field.name: getattr(rule, field.name) for field in fields(rule)}
    model.config.reading = {name: value for name, value in given.items() if value not in (None, False)}


@contextlib.contextmanager
def evaluating(model: nn.Module, *, baked: bool = False) -> Iterator[None]:
    """Switch to evaluation mode without gradients until the end of the block, then restore the mode.

    No random numbers are drawn, so that the block does not change a training.

    Args:
        model: model in any mode.
        baked: True to solve flows once for all batches, if positions count tokens. The vectors then differ
            in their last bits from those that are solved batch by batch.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> with evaluating(layer):
        ...     layer.training
        False
        >>> layer.training
        True
    """
    training = model.training
    model.train(False)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for module in model.modules():
                if baked and isinstance(module, FlowEncoder):
                    stack.enter_context(module.baked())  # position vectors do not depend on the data
            yield
    finally:
        model.train(training)


def inside(folder: Path, *names: str) -> Path:
    """Return the first of the named directories in a folder, or the folder itself."""
    return next((folder / name for name in names if (folder / name).is_dir()), folder)


def _plain(settings: Any) -> dict[str, Any]:
    """Return settings as JSON values, without the run directory, which has many equivalent names."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return values | {"run": None}


def differences(old: Any, new: Any, ignored: Collection[str] = ()) -> Iterator[str]:
    """List the keys in which two settings differ, with both values; directories are not compared."""
    return _differences(_plain(old), _plain(new), ignored)


def _differences(
    old: dict[str, Any], new: dict[str, Any], ignored: Collection[str], prefix: str = ""
) -> Iterator[str]:
    for name in old | new:
        there, here = old.get(name), new.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            yield from _differences(there, here, ignored, f"{prefix}{name}.")
        elif there != here and f"{prefix}{name}" not in ignored:
            yield f"{prefix}{name} is {json.dumps(there)} there and {json.dumps(here)} here"
