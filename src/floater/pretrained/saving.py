"""Files of plugged flows, separate from the model or in the files of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from transformers import PreTrainedModel

from floater.encodings.errors import PositionError
from floater.errors import first_line
from floater.flow.checks import is_count
from floater.guard import original
from floater.pretrained.card import write_card
from floater.pretrained.clocks import Clocks
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.families import PlugError, from_table, table_of
from floater.pretrained.files import read_object, read_tensors
from floater.pretrained.flows import Flows
from floater.pretrained.host import inner
from floater.pretrained.plug import bake, plug, unplug
from floater.pretrained.plugged import check_blocks, plug_state, plugged, trained_part
from floater.transformer.alignment import align

MOST_BLOCKS = 10_000
TENSORS, RECORD = "floater.safetensors", "floater.json"
_FREE = frozenset({"start", "max_length", "gradient", "refresh_every", "solver", "step"})
"""Options of the start, solution and training of a flow, which may differ in the model that loads it."""


def save(model: nn.Module, directory: str | Path) -> None:
    """Write the flow of a plugged model without the model.

    Args:
        model: a plugged model, baked or not.
        directory: directory for `floater.safetensors` and `floater.json`; it is created if it does not exist.

    Raises:
        PlugError: if the model is not plugged.
    """
    model = inner(model)
    state = plug_state(model)
    check_blocks(model)
    flows = trained_part(model)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in flows.state_dict().items()}
    # save_file would let only its owner read the file, whatever the umask
    (directory / TENSORS).write_bytes(to_bytes(tensors, {"format": "pt"}))
    config: Any = getattr(model, "config", None)
    record = {
        "model_type": getattr(config, "model_type", None),
        "model_class": type(model).__name__,
        "model": getattr(config, "_name_or_path", None) or None,
        "plug": {**state.options, "baked": flows.length},
    }
    (directory / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    write_card(directory, model, whole=False)


def load(directory: str | Path, model: nn.Module | None = None, **kwargs: Any) -> nn.Module:
    """Read a flow that `save` wrote, or a plugged model that `save_pretrained` wrote.

    Args:
        directory: directory that `save` or `save_pretrained` wrote, or a checkpoint of a Trainer.
        model: model that gets the flow. It is not plugged yet, or plugged with the options of the saved one,
            except those of the start, solution and training of a flow. If None, the model is loaded: for a
            flow, the model that it was trained in, by the name under which that was loaded; otherwise the
            whole model in the directory.
        kwargs: arguments of `from_pretrained`, if the model is loaded.

    Returns:
        The plugged model.

    Raises:
        PlugError: if the directory contains no readable flow, no model can be found, a weight is not finite,
            or the flow belongs to another architecture, depth or width, or to a model that was plugged with
            other options.
    """
    with readable(directory):
        return _load(Path(directory), model, **kwargs)


def _load(directory: Path, model: nn.Module | None, **kwargs: Any) -> nn.Module:
    config = directory / "config.json"
    saved = original(read_object(config)) if config.is_file() else {}
    whole = bool(saved.get("floater"))
    # Of a directory with a whole model and its flow, take the model unless another one is given.
    if (directory / RECORD).is_file() and not (whole and model is None):
        record = read_object(directory / RECORD)
        if not {"model_type", "model_class", "model", "plug"} <= record.keys():
            raise PlugError(f"{directory / RECORD} is not one that floater.save wrote")
        tensors = read_tensors([directory / TENSORS], "")
        if model is None:
            if record["model"] is None:
                raise PlugError(f"{directory / RECORD} does not name a model; give one to load the flow into")
            model = align(_class(record["model_class"]).from_pretrained(record["model"], **kwargs))
    else:
        if not whole:
            raise PlugError(
                f"{directory} holds no flow: neither {RECORD} nor a config.json of a plugged model is there"
            )
        record = {"model_type": saved["model_type"], "plug": saved["floater"]}
        if model is None:
            check_depth(saved, directory)
            whole_model: nn.Module = _class(saved["architectures"][0]).from_pretrained(directory, **kwargs)
            if (name := not_finite(whole_model)) is not None:
                raise PlugError(f"{directory} holds values of '{name}' that are not finite")
            return whole_model
        tensors = read_tensors(sorted(directory.glob("*.safetensors")), "floater.")
    return fill(model, record, tensors, directory)


@contextmanager
def readable(origin: object) -> Iterator[None]:
    """Refuse files that are not those of a flow or an extension with one error, whatever fails in reading.

    Args:
        origin: directory of the files, for the message.

    Raises:
        PlugError: if the block raises an error that this library has not described.
    """
    try:
        yield
    except (PlugError, ExtendError, PositionError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # files of strangers: any error of any code that reads them
        raise PlugError(f"{origin} cannot be loaded ({type(error).__name__}: {first_line(error)})") from error


def fill(
    model: nn.Module, record: Mapping[str, Any], tensors: Mapping[str, Tensor], directory: str | Path
) -> nn.Module:
    """Plug a model with the saved options, and load the flow into it.

    Args:
        model: model that is not plugged, or plugged with the options of the saved one.
        record: saved record, with `model_type` and `plug`, the options of the plugged model.
        tensors: tensors of the flow, by their names in it.
        directory: source of the tensors, for messages.

    Returns:
        The model.

    Raises:
        PlugError: if record or tensors do not fit the model, which is then unchanged.
    """
    root = inner(model)
    kind = getattr(getattr(root, "config", None), "model_type", None)
    if kind != record["model_type"]:
        raise PlugError(
            f"the flow in {directory} is one of a '{record['model_type']}' model; this one is a '{kind}'"
        )
    if not isinstance(record["plug"], Mapping) or "baked" not in record["plug"]:
        raise PlugError(f"the flow in {directory} does not say how it is plugged")
    options = dict(record["plug"])
    length = options.pop("baked")
    if length is not None and not is_count(length):
        raise PlugError(f"the flow in {directory} is baked for {length!r} positions")
    new = plugged(root) is None
    if new:
        with torch.device("meta"):  # nothing is allocated before the shapes are compared
            plug(root, **options)
    else:
        check_same(options, plug_state(root).options, directory)
    flows = trained_part(root)
    baking = length is not None and flows.length is None
    if baking and isinstance(flows, Clocks):
        raise PlugError(f"the clocks in {directory} are baked for {length} positions, which they cannot be")
    shapes = _shapes(flows.state_dict()) if not baking else cast(Flows, flows).baked_shapes(length)
    if new:
        unplug(root)
    saved = _shapes(tensors)
    if differing := sorted(n for n in shapes.keys() | saved.keys() if shapes.get(n) != saved.get(n)):
        name = differing[0]
        raise PlugError(
            f"the flow in {directory} is not one of this model, which has another depth or width, or is "
            f"plugged differently: '{name}' is {saved.get(name, 'missing')} there and "
            f"{shapes.get(name, 'missing')} here"
        )
    if new:
        plug(root, **options)
        flows = trained_part(root)
    if baking:
        bake(root, length)
    flows.load_state_dict(tensors)
    return model


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_same(saved: Mapping[str, Any], options: Mapping[str, Any], directory: str | Path) -> None:
    """Refuse a flow of a model that is plugged with other options.

    Args:
        saved: options of the flow's model.
        options: options of the model that is to load the flow.
        directory: source of the flow, for messages.

    Raises:
        PlugError: if options differ other than those of the start, solution and training of a flow.
    """
    for name, value in saved.items():
        if name not in _FREE and _comparable(name, options[name]) != _comparable(name, value):
            here, there = options[name], value
            raise PlugError(
                f"the flow in {directory} is plugged differently from this model: {name} is {there} there "
                f"and {here} here"
            )


def _comparable(name: str, value: Any) -> Any:
    """Return an option without the order of blocks and of separate projections, which does not matter."""
    if name == "projections" and (table := table_of(value)) is not None:
        return from_table(table)
    return sorted(value) if isinstance(value, list | tuple) else value


def check_depth(config: Mapping[str, Any], origin: object) -> None:
    """Refuse a configuration of so many blocks that building them would not end.

    Args:
        config: fields of the configuration by name.
        origin: directory of the configuration, for the message.

    Raises:
        PlugError: if a number of blocks is above MOST_BLOCKS.

    Example:
        >>> check_depth({"num_hidden_layers": 12}, "a folder")
    """
    for name, value in config.items():
        if name.endswith(("layers", "n_layer")) and isinstance(value, int) and value > MOST_BLOCKS:
            raise PlugError(f"{origin} has {name}={value}; there may be {MOST_BLOCKS} at most")


def not_finite(model: nn.Module) -> str | None:
    """Return the name of the first tensor of a model that has an infinity or a NaN; None if there is none.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> with torch.no_grad():
        ...     layer.bias.fill_(torch.nan)
        Parameter containing:
        tensor([nan], requires_grad=True)
        >>> not_finite(layer)
        'bias'
    """
    tensors = model.state_dict().items()
    return next((name for name, x in tensors if x.is_floating_point() and not bool(x.isfinite().all())), None)


def _class(name: object) -> Any:
    kind = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise PlugError(f"transformers has no model class '{name}'; give the model to load the flow into")
    return kind
