"""Subjects of analyses: a run, a saved model, a Hugging Face checkpoint, or a model in memory."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub import constants
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from floater.encodings import PositionModel
from floater.errors import DataError
from floater.flow import FlowError
from floater.lab.settings import peek, read
from floater.lab.study.analyses.untrained import example_positions
from floater.lab.tasks.registry import import_modules
from floater.lab.training.model import configured, eval_mode, load_model, sealed_model
from floater.lab.training.run import LONGEST as LONGEST_EXAMPLE
from floater.lab.training.run import MODEL, RESULT, SETTINGS, inside
from floater.pretrained import PlugError, load
from floater.pretrained.saving import RECORD
from floater.transformer.alignment import align
from floater.transformer.base import FloaterPreTrainedModel
from floater.transformer.stacks import Encoder

_MODELS = ("floater.transformer", "floater.transformer.events", "floater.transformer.documents")
LONGEST = 512  # positions shown by default
_UNLOADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    RuntimeError,
    ImportError,
    SafetensorError,
    UnpicklingError,
)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, its tokenizer and its training length.

    Args:
        name: name that a user gave it.
        model: a Hugging Face model, the reference Transformer or any other.
        folder: source of its tokenizer, a directory or the name of a checkpoint; None if it has none.
        longest: number of tokens of the longest training example, if a run on text recorded it.
    """

    name: str
    model: PreTrainedModel
    folder: str | None = None
    longest: int | None = None

    @property
    def trained(self) -> int | None:
        """Return the training length in tokens of the run, else of the configuration, or None."""
        names = "training_length", "max_position_embeddings", "n_positions"
        lengths = [self.longest, *(getattr(self.model.config, name, None) for name in names)]
        return next((length for length in lengths if isinstance(length, int) and length > 0), None)

    def trained_at(self, location: str) -> int | None:
        """Return the training length of the stack at a location; levels of a document model differ in it."""
        models, (stack, *_) = position_models(self.model), location.split(" ")
        stack_length = next(
            (model.spec.max_length for name, model in models.items() if name in ("", stack)), None
        )
        general = getattr(self.model.config, "training_length", None)
        return self.trained if stack_length in (None, general) else stack_length

    def length(self, requested: int | None = None, most: int = LONGEST, location: str = "") -> int:
        """Return the number of positions to analyse.

        Args:
            requested: the number itself; None for the training length, but at most `most`.
            most: largest number by default.
            location: location of the vectors, whose stack decides the training length.

        Raises:
            DataError: if there are fewer than two.
        """
        length = min(self.trained_at(location) or most, most) if requested is None else requested
        if length < 2:
            raise DataError(f"length is {length}; there must be at least 2 positions")
        return length

    def tokenizer(self) -> Any:
        """Return the model's subword tokenizer.

        Raises:
            DataError: if it has no tokenizer, or one that cannot be read.
        """
        try:
            if self.folder is None:
                raise ValueError("it was given without a directory")
            tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise DataError(f"{self.name} has no tokenizer: {' '.join(str(error).split())[:120]}") from error
        if not getattr(tokenizer, "is_fast", False):
            raise DataError(f"{self.name} has a tokenizer that does not map tokens to words")
        return tokenizer


Source = Subject | PreTrainedModel | str | Path


def load_subject(source: Source) -> Subject:
    """Return the subject of an analysis.

    Args:
        source: a run directory, a saved model, the name of a Hugging Face checkpoint, or a model.

    Raises:
        DataError: if there is no model that can be loaded.
        SettingsError: if a run's configuration names modules that are not imported yet.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> load_subject(FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, training_length=64))).trained
        64
    """
    if isinstance(source, Subject):
        return source
    if isinstance(source, PreTrainedModel):
        return Subject(type(source).__name__, source)
    path = Path(source)
    if not path.is_dir() and (path.is_absolute() or (len(path.parts) != 1 and Path(path.parts[0]).exists())):
        raise DataError(f"{source} holds no trained model: there is no such directory")
    if path.is_file():
        raise DataError(f"{source} is a file; give the directory of a run or of a saved model")
    if not path.is_dir():
        return Subject(str(source), _hugging_face(str(source)), str(source))
    if (config := Path(source) / SETTINGS).is_file():
        import_modules(peek(read(config), "imports", []), str(config), trusted=False)
    folder = inside(Path(source), MODEL)
    at = Path(source).resolve()
    name = at.parent.name if at.name == MODEL else at.name
    if (folder / RECORD).is_file() and not (folder / "config.json").is_file():
        return Subject(name, _plugged(folder), str(folder))
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{source} holds no trained model: {folder / 'config.json'} cannot be read"
        ) from error
    if not isinstance(config, dict):
        raise DataError(f"{source} holds no trained model: {folder / 'config.json'} is not a mapping")
    if config.get("floater"):
        return Subject(name, _plugged(folder), str(folder), _longest(folder.parent / RESULT))
    kind = _model_class(str(next(iter(config.get("architectures") or []), None)))
    longest = _longest(folder.parent / RESULT)
    if kind is None:
        return Subject(name, _hugging_face(str(sealed_model(folder))), str(folder), longest)
    model, _ = load_model(configured(kind), source, "cpu", read=lambda folder: None)
    # other examples than texts are as long as their events, or the words of all their sentences
    return Subject(name, model, str(folder), longest if model.main_input_name == "input_ids" else None)


def _longest(result: Path) -> int | None:
    """Return the length of a run's longest training example."""
    try:
        longest: int | None = json.loads(result.read_text(encoding="utf-8")).get(LONGEST_EXAMPLE)
    except (OSError, ValueError, AttributeError):
        return None
    return longest


def _model_class(architecture: str) -> type[FloaterPreTrainedModel] | None:
    """Return the class of a model of this library; None for another library's architecture."""
    classes = (getattr(importlib.import_module(module), architecture, None) for module in _MODELS)
    ours = (kind for kind in classes if isinstance(kind, type) and issubclass(kind, FloaterPreTrainedModel))
    return next(ours, None)


def _hugging_face(name: str) -> PreTrainedModel:
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # weights of a head that no analysis needs are not reported
    local, offline = Path(name).is_dir(), constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = offline or (not local and not _hub_answers())
    try:
        model, keys = AutoModel.from_pretrained(name, output_loading_info=True, trust_remote_code=False)
    except _UNLOADABLE as error:
        if constants.HF_HUB_OFFLINE and not local:
            raise DataError(
                f"{name} is neither a directory nor a checkpoint in the cache of Hugging Face, and "
                f"{constants.ENDPOINT} cannot be reached"
            ) from error
        reason = " ".join(str(error).split())[:160]
        absent = "is no directory, and no checkpoint by this name can"
        what = "holds a model that cannot" if local else absent
        raise DataError(f"{name} {what} be loaded: {reason}") from error
    finally:
        logging.set_verbosity(before)
        constants.HF_HUB_OFFLINE = offline
    assert isinstance(model, PreTrainedModel)
    align(model)
    # a masked language model has no pooler, and no analysis needs one
    missing = sorted(key for key in keys["missing_keys"] if "pooler" not in key.split("."))
    if missing:
        others = sorted(keys["unexpected_keys"])
        raise DataError(
            f"{name} holds a model that cannot be loaded: {len(missing)} weights of a {type(model).__name__} "
            f"are not there, such as {missing[0]}" + f"; one that is has the name {others[0]}" * bool(others)
        )
    return model


def _hub_answers() -> bool:
    """Return whether the hub can be reached; its own client would try for a minute."""
    if getproxies().keys() & {"https", "all"}:
        return True  # only the proxy can resolve it
    endpoint = urlsplit(constants.ENDPOINT)
    try:
        port = endpoint.port or (80 if endpoint.scheme == "http" else 443)
        socket.create_connection((str(endpoint.hostname), port), timeout=5).close()
    except OSError:
        return False
    return True


def _plugged(folder: Path) -> PreTrainedModel:
    """Return a model of another library with its flow."""
    try:
        model = load(sealed_model(folder))
    except DataError:
        raise
    except (PlugError, OSError, ValueError) as error:
        raise DataError(f"{folder} holds a plugged model that cannot be loaded: {error}") from error
    assert isinstance(model, PreTrainedModel)
    return model


def position_models(model: nn.Module) -> dict[str, PositionModel]:
    """Return position models by their stack: "encoder", "decoder", "cross"; "" for a single one.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> list(position_models(FloaterModel(FloaterConfig.preset("tiny", vocab_size=9))))
        ['']
    """
    models: dict[str, PositionModel] = {}
    for name, module in model.named_modules():
        if isinstance(module, PositionModel) and not any(name.startswith(f"{outer}.") for outer in models):
            models[name] = module
    if len(models) == 1:
        return dict(zip([""], models.values(), strict=True))
    stacks = [name.removesuffix("position").rstrip("._").rpartition(".")[2] for name in models]
    return dict(zip(stacks, models.values(), strict=True))


def label(stack: str, *parts: str) -> str:
    """Return the name of a location in a model.

    Example:
        >>> label("", "block 1", "query"), label("encoder", "input")
        ('block 1 query', 'encoder input')
    """
    return " ".join(part for part in (stack, *parts) if part)


def enter(name: str, values: dict[str, Any], location: str, value: object) -> None:
    """Add the value of a location.

    Args:
        name: name of the model, for error messages.
        values: values by location, to which the value is added.
        location: location without a value so far.
        value: value of the location.

    Raises:
        DataError: if the location has a value.
    """
    if location in values:
        raise DataError(f"{name} has two vectors at '{location}', which must have different names")
    values[location] = value


def check_vocabulary(name: str, tokenizer: Any, ids: Tensor) -> None:
    """Check that the vocabulary of a tokenizer has the words of a text.

    Args:
        name: name of the model, for error messages.
        tokenizer: tokenizer of the ids.
        ids: token ids (n,).

    Raises:
        DataError: if half of the tokens are unknown, or more than half the same one.
    """
    unknown = tokenizer.unk_token_id
    unknown_count = 0 if unknown is None else int((ids == unknown).sum())
    if 2 * unknown_count >= len(ids):
        raise DataError(f"{unknown_count:,} of the text's {len(ids):,} tokens are unknown to {name}")
    token, count = (int(x) for x in (ids.bincount().argmax(), ids.bincount().max()))
    if 2 * count > len(ids):
        raise DataError(
            f"{count:,} of the text's {len(ids):,} tokens are the same, number {token}: {name} does not "
            "know the text"
        )


def chosen(kind: str, name: str, values: dict[str, Any], where: str | None) -> tuple[str, Any]:
    """Return the value at a location, by default at the first one, with the location.

    Raises:
        DataError: if there is none; the message names the locations.

    Example:
        >>> chosen("vectors", "mine", {"input": 1, "block 2": 2}, "block 2")
        ('block 2', 2)
    """
    if where is None:
        return next(iter(values.items()))
    if where not in values:
        raise DataError(f"{name} has no {kind} at '{where}'; it has them at: {', '.join(values)}")
    return where, values[where]


def reader(model: PreTrainedModel) -> Any:
    """Return the part of a model that reads its text: the encoder if it has one, else the body.

    Raises:
        DataError: if it reads something else.
    """
    if model.main_input_name != "input_ids":
        raise DataError(f"a {type(model).__name__} reads {model.main_input_name}, not text")
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


@contextmanager
def foreign(failed: str) -> Iterator[None]:
    """Replace the errors of another library's model within the context by an error of one line.

    Args:
        failed: the failure that an error means, the beginning of the message.

    Raises:
        DataError: instead of the errors of such models.
    """
    try:
        yield
    except FlowError:  # of this library
        raise
    except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise DataError(f"{failed}: {' '.join(str(error).split())[:160]}") from error


def example_inputs(model: PreTrainedModel, ids: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
    """Return the arguments of a forward pass over tokens, with positions of every field that a model reads.

    A text has no trees, languages, second positions and lengths of its target. A model of this library gets
    those of `example_positions`, the same for each row.

    Args:
        model: a Hugging Face model.
        ids: token ids (batch, T).
        mask: (batch, T), zero at padding.

    Example:
        >>> from floater.transformer import FloaterConfig, FloaterModel
        >>> model = FloaterModel(FloaterConfig.preset("tiny", vocab_size=9, position="xl"))
        >>> example_inputs(model, torch.zeros(1, 4, dtype=torch.long))["positions"].reordered
        tensor([[1, 1, 0, 0]])
    """
    ids = ids.to(model.device)
    mask = torch.ones_like(ids) if mask is None else mask.to(model.device)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    if isinstance(model, FloaterPreTrainedModel):
        inputs["positions"] = example_positions(model, ids.shape[1]).to(model.device)
    return inputs


@torch.no_grad()
def run_tokens(model: PreTrainedModel, ids: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """Return the input of the first block and the output of each block, for token ids.

    The blocks are those of the encoder in an encoder-decoder.

    Args:
        model: a Hugging Face model.
        ids: token ids (batch, T).
        mask: (batch, T), zero at padding.

    Returns:
        steps + 1 tensors (batch, T, dim); a block that is applied again and again has as many steps.

    Raises:
        PositionError: if the position model does not reach that far.
        DataError: if the model cannot be run on text.
    """
    stack, inputs = reader(model), example_inputs(model, ids, mask)
    inner = next((module for module in model.modules() if isinstance(module, Encoder)), None)
    with eval_mode(model):
        if inner is not None:
            return _between_blocks(inner, lambda: stack(**inputs))
        with foreign(f"{type(model).__name__} cannot be run on {ids.shape[1]} tokens of text"):
            out = stack(**inputs, output_hidden_states=True, return_dict=True)
    return [states.cpu() for states in out.hidden_states]


def _between_blocks(stack: Encoder, run: Callable[[], object]) -> list[Tensor]:
    """Record the input of a stack's first block and the output of each block while something runs."""
    seen: list[Tensor] = []
    hooks = [
        stack.blocks[0].register_forward_pre_hook(
            lambda block, args: None if seen else seen.append(args[0])  # shared layers are called again
        )
    ]
    hooks += [
        block.register_forward_hook(lambda block, args, out: seen.append(out)) for block in stack.blocks
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return [states.cpu() for states in seen]
