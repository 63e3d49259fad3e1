"""Initial checkpoints: their location, tokenizer and weights under a task's head, and the plug."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import StrictDataclassError
from huggingface_hub.utils import logging as hub_logging
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as hf_logging

import floater
from floater.errors import DataError, first_line, no_directory
from floater.lab.tasks.finetuning.settings import Checkpoint, Plug
from floater.lab.text.bpe import BOS, EOS, TOKENIZER_FILE, load_bpe, template
from floater.lab.training.contents import Part
from floater.lab.training.files import sealed
from floater.lab.training.model import sealed_model
from floater.lab.training.optimizer import flow_parameters
from floater.lab.training.run import MODEL, VOCABULARY, inside
from floater.pretrained.saving import check_depth, not_finite
from floater.transformer import FloaterConfig
from floater.transformer.alignment import align

PACKAGE = "package:"
_READ = ["*.json", "*.txt", "*.safetensors"]
_ALSO = ["*.bin", "*.model"]
_REVISION = re.compile(r"[\w.-]+/[\w.-]+@[\w.-]+")
logger = logging.getLogger(__name__)
_POOLERS = ("pooler", "sequence_summary")
_ADAPTER = "adapter_config.json"
_VARIANT = re.compile(r"(?:pytorch_)?model\.([^.]+?)(?:-\d+-of-\d+)?\.(?:safetensors|bin)")
_WEIGHTS = [
    f"{name}{end}" for name in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")
]
_SHOWN = 4  # names of weights in a message
_FIXED = ("id2label", "label2id", "num_labels", "problem_type", "return_dict")


def locate(path: str) -> str:
    """Return the directory of a checkpoint, or its name on the Hugging Face hub.

    For a name with a revision, "NAME@REVISION", this is the cache directory of that revision.

    Raises:
        DataError: if a package is not installed or has no such folder, a path does not exist or is a model
            that differs from the one that training sealed, or a revision cannot be found or downloaded.

    Example:
        >>> locate("package:no_such_package/model")
        Traceback (most recent call last):
        floater.errors.DataError: package:no_such_package/model: there is no package 'no_such_package'
    """
    if path.startswith(PACKAGE):
        name, _, folder = path.removeprefix(PACKAGE).partition("/")
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise DataError(f"{path}: there is no package '{name}'")
        inner = Path(spec.submodule_search_locations[0]) / folder
        if not inner.is_dir():
            raise DataError(f"{path}: the package has no folder '{folder}'")
        return str(inner)
    if Path(path).is_dir():
        return str(sealed_model(inside(Path(path), MODEL)))
    if _REVISION.fullmatch(path):
        name, _, revision = path.partition("@")
        try:
            return snapshot_download(name, revision=revision, allow_patterns=_READ)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be downloaded ({first_line(error)})") from error
    parent = Path(path).parent
    within = parent.name and parent.is_dir()
    if Path(path).exists() or path.startswith((".", "/", "~")) or path.count("/") > 1 or within:
        raise no_directory(path)
    return path


def checkpoint_files(path: str) -> list[Part | Path]:
    """Return the files of a checkpoint's configuration, tokenizer and weights.

    For a name on the Hugging Face hub, this is the file with the commit that its branch or tag has in the
    cache; a name with a commit has none.

    Args:
        path: location of the checkpoint, as for `locate`; it need not exist.
    """
    if path.startswith(PACKAGE) or Path(path).is_dir():
        try:
            folder = Path(locate(path))
        except DataError:
            return [Path(path)]
        vocabulary = folder.parent / VOCABULARY
        beside = not (folder / TOKENIZER_FILE).is_file() and vocabulary.is_dir()
        return [Part(folder, (*_READ, *_ALSO)), *([Part(vocabulary, ("*.json",))] if beside else [])]
    name, _, revision = path.partition("@")
    commit = Path(HF_HUB_CACHE, "--".join(["models", *name.split("/")]), "refs", revision or "main")
    return [commit if commit.is_file() else Path(path)]


def load_tokenizer(path: str, *, padding: bool = True) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a checkpoint; a tokenizer of this library adds <s> before a text, as in training.

    Args:
        path: location of the checkpoint, as for `locate`.
        padding: whether texts will be padded; a tokenizer without a padding token then pads with its end
            token.

    Raises:
        DataError: if there is no tokenizer, it does not provide the offsets of tokens in the text, or it has
            no token to pad with.
    """
    folder = locate(path)
    config = read_config(folder)
    if isinstance(config, FloaterConfig):
        run_vocabulary = (
            Path(folder).parent / VOCABULARY
        )  # vocabulary of the run that contains the checkpoint
        alone = not (Path(folder) / TOKENIZER_FILE).is_file() and run_vocabulary.is_dir()
        tokenizer = load_bpe(sealed(run_vocabulary) if alone else folder)
        texts = f"{BOS} $A {EOS}", f"{BOS} $A {EOS} $B {EOS}"
        tokenizer.backend_tokenizer.post_processor = template(*texts)
        return tokenizer
    with _loading(f"{path}: no tokenizer can be read"):
        loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    # without its files, transformers makes a tokenizer with only special tokens
    if not isinstance(loaded, PreTrainedTokenizerFast) or len(loaded) <= len(set(loaded.all_special_ids)):
        raise DataError(f"{path}: no tokenizer can be read; it should be in tokenizer.json beside the model")
    tokenizer = loaded
    if padding and tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise DataError(f"{path}: the tokenizer has neither a padding token nor an end token to pad with")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def start(
    checkpoint: Checkpoint,
    plug: Plug,
    auto: Any,
    tokenizer: PreTrainedTokenizerFast,
    **head: Any,
) -> PreTrainedModel:
    """Load a checkpoint's model under a head, and plug it as the settings define.

    Parameters of the head, and of a pooler in front of it, may be new; they are logged. So is a head of the
    checkpoint for labels in another order.

    Args:
        checkpoint: checkpoint in the settings.
        plug: plug in the settings.
        auto: Auto class of transformers that loads the model, such as AutoModelForSequenceClassification.
        tokenizer: tokenizer of the checkpoint.
        **head: fields of the configuration about the head, such as num_labels.

    Raises:
        DataError: if the checkpoint cannot be loaded, lacks other parameters, or cannot be plugged.
    """
    folder = locate(checkpoint.path)
    if reserved := sorted(checkpoint.config.keys() & {*head, *_FIXED}):
        raise DataError(f"model.config: {reserved[0]!r} is not to be set; it follows from the task")
    config = read_config(folder, checkpoint.config | head)
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    has_flow = bool(getattr(config, "floater", None))
    with _loading(f"{checkpoint.path}: no model can be loaded"):
        model, report = auto.from_pretrained(
            folder,
            config=config,
            output_loading_info=True,
            dtype=torch.float32,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # mismatched parameters are initialised like missing ones
        )
    align(model)
    new = _new(report)
    body = f"{model.base_model_prefix}."
    _refuse_lacking(checkpoint.path, model, [name for name in new if name.startswith(body)])
    if len(tokenizer) > config.get_text_config().vocab_size:
        raise DataError(
            f"{checkpoint.path}: the tokenizer has {len(tokenizer)} tokens, but the model "
            f"{config.get_text_config().vocab_size}"
        )
    plug_in(model, plug, folder if has_flow else None)
    flow = sum(p.numel() for name, p in model.named_parameters() if name in flow_parameters(model))
    sizes = type(model).__name__, f"{model.num_parameters():,}", f"{flow:,}"
    logger.info("%s: %s parameters, %s in a plugged flow", *sizes)
    if new:
        logger.info("new parameters, not in %s: %s", checkpoint.path, ", ".join(new))
    else:
        before, now = ([*each.id2label.values()] for each in (read_config(folder), config))
        if {*map(str.lower, before)} == {*map(str.lower, now)} and before != now:
            orders = ", ".join(before), ", ".join(now)
            logger.info("the head of %s was for %s; it is now for %s", checkpoint.path, *orders)
    return cast(PreTrainedModel, model)


def load_pretrained(folder: str, dtype: str = "auto") -> PreTrainedModel:
    """Load a checkpoint under its own head, with all weights of the model.

    New parameters of a pooler, and weights of the checkpoint that its own class does not read, such as those
    of a second head in pretraining, are logged.

    Args:
        folder: directory or name, as returned by `locate`.
        dtype: type of the weights, such as "bfloat16"; by default that of the checkpoint.

    Raises:
        DataError: if the checkpoint cannot be loaded, is of this library, lacks weights, names a class that
            Transformers does not have, or names none and holds weights of a head; or a weight is not finite.
    """
    config = read_config(folder)
    if isinstance(config, FloaterConfig):
        raise DataError(
            f"{folder} holds a model of this library, not of Transformers: its encoding decides which "
            "lengths it takes (floater models), and it is exported as a program (torch.export, ONNX)"
        )
    with _loading(f"{folder}: no model can be loaded"):
        names = list(config.architectures or ())
        kind: Any = getattr(transformers, names[0], None) if names else transformers.AutoModel
        if names and not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
            raise DataError(
                f"{folder}: architectures in config.json is {names[0]!r}, which is no model class of "
                "Transformers; name the one whose weights these are"
            )
        model, report = kind.from_pretrained(
            folder,
            dtype=dtype,
            output_loading_info=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
        )
    name, new, unread = type(model).__name__, _new(report), sorted(report["unexpected_keys"])
    if unread and not names:
        raise DataError(
            f"{folder}: the checkpoint holds {unread[0]}, which {name} does not read; name the class of the "
            f'model in config.json, as in "architectures": ["{name}"]'
        )
    _refuse_lacking(folder, model, new)
    if new:
        _warn_once(f"{folder} lacks weights of {name}, which are random: {_listed(new)}")
    if unread:
        _warn_once(f"{folder}: {name} does not use these weights of the checkpoint: {_listed(unread)}")
    if (broken := not_finite(model)) is not None:
        raise DataError(f"{folder}: '{broken}' has values that are not finite")
    return cast(PreTrainedModel, model)


def _new(report: Mapping[str, Any]) -> list[str]:
    """Return the weights of a model that are not in the checkpoint, or there in another shape."""
    return sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])})


def _refuse_lacking(path: str, model: PreTrainedModel, new: list[str]) -> None:
    """Refuse weights that are not in the checkpoint, but for those of a pooler."""
    lacking = [name for name in new if not any(pooler in name for pooler in _POOLERS)]
    if lacking:
        body = type(model.base_model).__name__
        is_head = not any(name.startswith(f"{model.base_model_prefix}.") for name in lacking)
        hint = f"; if it has no head, name {body} in architectures of config.json"
        raise DataError(
            f"{path}: the checkpoint lacks {len(lacking)} parameters of {type(model).__name__}, or has them "
            f"in another shape, such as {lacking[0]}{hint * (is_head and body != type(model).__name__)}"
        )


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + f" and {rest} more" * (rest > 0)


@functools.cache
def _warn_once(message: str) -> None:
    """Log a warning, once for a checkpoint that is loaded for each of several measurements."""
    logger.warning("%s", message)


def plug_in(model: PreTrainedModel, plug: Plug, flow_checkpoint: str | None) -> None:
    """Plug FLOATER into a model as the settings define, and freeze the parameters that are not trained.

    Args:
        model: model that is not plugged, or has the flow of its checkpoint.
        plug: plug in the settings.
        flow_checkpoint: directory of the checkpoint, if it contains a flow.

    Raises:
        DataError: if the model or the options cannot be used, or the flow is for another model.
    """
    plugs = plug.options is not None or plug.flow is not None
    if plugs and flow_checkpoint:
        raise DataError(f"{flow_checkpoint} is plugged already; leave plug.options and plug.flow out")
    if not plugs and not flow_checkpoint and plug.train != "all":
        raise DataError(f"plug.train is '{plug.train}', but nothing is plugged; plug.options={{}} does that")
    try:
        if plug.options is not None:
            floater.plug(model, **plug.options)
        if plug.flow is not None:
            floater.load(locate(plug.flow), model)
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"plug: {first_line(error)}") from error
    flow = flow_parameters(model)
    for name, parameter in model.named_parameters():
        if plug.train != "all" and (name in flow) != (plug.train == "flow"):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise DataError(
            f"nothing is left to be trained: plug.train is '{plug.train}', and the rest is frozen"
        )


def read_config(folder: str, changes: Mapping[str, Any] | None = None) -> Any:
    """Read the configuration of a checkpoint, with changes.

    Args:
        folder: directory or name, as returned by `locate`.
        changes: new values of existing fields.

    Raises:
        DataError: if the configuration cannot be read, has no such field, or a value is not valid; or if the
            checkpoint is GGUF, a PEFT adapter, or a variant, which Transformers does not read by itself.
    """
    if [*Path(folder).glob("*.gguf")] and not (Path(folder) / "config.json").is_file():
        raise DataError(
            f"{folder} holds GGUF, which is read only; convert it: load it with gguf_file= and accelerate, "
            "set hf_quantizer = None and is_quantized = False, delete config.quantization_config, and save it"
        )
    if (Path(folder) / _ADAPTER).is_file():
        raise DataError(
            f"{folder} holds a PEFT adapter ({_ADAPTER}); merge it into its model first: load it with peft, "
            "call merge_and_unload(), and save the result in a new directory"
        )
    variants = [
        match for file in sorted(Path(folder).glob("*model.*")) if (match := _VARIANT.fullmatch(file.name))
    ]
    if variants and not any((Path(folder) / name).is_file() for name in _WEIGHTS):
        raise DataError(
            f"{folder} holds its weights as {variants[0][0]}; save it without a variant first: load it with "
            f"Transformers and variant={variants[0][1]!r}, and save the result in a new directory"
        )
    where = "" if Path(folder).is_dir() else "there is no such directory, and on the Hugging Face hub "
    with _loading(f"{folder}: {where}no model can be loaded"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        check_depth(vars(config), folder)
    for name, value in (changes or {}).items():
        if not hasattr(config, name):
            raise DataError(f"model.config: a configuration of type '{config.model_type}' has no '{name}'")
        try:
            setattr(config, name, value)
        except (StrictDataclassError, TypeError, ValueError) as error:
            raise DataError(f"model.config: {name} cannot be {value!r} ({first_line(error)})") from error
    return config


@contextlib.contextmanager
def _loading(message: str) -> Iterator[None]:
    """Convert any failure of loading into one message; mute reports on parameters and retries."""
    before = [(logs, logs.get_verbosity()) for logs in (hf_logging, hub_logging)]
    for logs, _ in before:
        logs.set_verbosity_error()
    try:
        yield
    except (DataError, MemoryError):
        raise
    except UnpicklingError as error:  # its own message explains how to run code in the file
        raise DataError(f"{message} (a file holds more than tensors and numbers)") from error
    except Exception as error:  # files of strangers: any error of any code that reads them
        raise DataError(f"{message} ({first_line(error)})") from error
    finally:
        for logs, level in before:
            logs.set_verbosity(level)
