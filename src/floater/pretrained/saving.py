"""Plugged flows in files of their own, and plugged models in those of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from floater.alignment import align
from floater.pretrained.card import write_card
from floater.pretrained.families import PlugError
from floater.pretrained.plug import bake, flows_of, inner, need, plug, plugged, unplug

TENSORS, RECORD = "floater.safetensors", "floater.json"
_FREE = frozenset({"start", "max_length", "gradient", "refresh_every", "solver", "step"})
"""Options that say how a flow begins, or is solved and trained, and may differ where it is loaded."""


def save(model: nn.Module, directory: str | Path) -> None:
    """Write the flow of a plugged model, apart from the model.

    Args:
        model: a plugged model, baked or not.
        directory: gets `floater.safetensors` and `floater.json`; it is made if it does not exist.

    Raises:
        PlugError: if the model is not plugged.
    """
    model = inner(model)
    state = need(model)
    flows = flows_of(model)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in flows.state_dict().items()}
    save_file(tensors, directory / TENSORS, {"format": "pt"})
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
        directory: what `save`, `save_pretrained` or a Trainer's checkpoint wrote.
        model: the model that gets the flow; not plugged yet, or plugged as the saved one was, but for how a
            flow begins or is solved and trained. None: of a
            flow, the model that it was trained in, by the name that it was loaded under; of a whole model,
            that one.
        kwargs: of `from_pretrained`, where the model is loaded.

    Returns:
        The plugged model.

    Raises:
        PlugError: if there is no flow in the directory or none that can be read, no model to be found, or
            the flow is one of another architecture, depth or width, or of a model plugged otherwise.
    """
    directory = Path(directory)
    config = directory / "config.json"
    saved = _json(config) if config.is_file() else {}
    whole = bool(saved.get("floater"))
    # A whole model beside its flow is asked for unless there is another one to put the flow into.
    if (directory / RECORD).is_file() and not (whole and model is None):
        record = _json(directory / RECORD)
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
            whole_model: nn.Module = _class(saved["architectures"][0]).from_pretrained(directory, **kwargs)
            return whole_model
        tensors = read_tensors(sorted(directory.glob("*.safetensors")), "floater.")
    return fill(model, record, tensors, directory)


def fill(
    model: nn.Module, record: Mapping[str, Any], tensors: Mapping[str, Tensor], directory: str | Path
) -> nn.Module:
    """Plug a model as it was saved, and give it the flow.

    Args:
        model: not plugged, or plugged as the saved one was.
        record: `model_type` and `plug`, how it was plugged.
        tensors: of the flow, by their names in it.
        directory: where they come from, for messages.

    Returns:
        The model.

    Raises:
        PlugError: if they do not fit; the model is left as it was.
    """
    root = inner(model)
    kind = getattr(getattr(root, "config", None), "model_type", None)
    if kind != record["model_type"]:
        raise PlugError(
            f"the flow in {directory} is one of a '{record['model_type']}' model; this one is a '{kind}'"
        )
    options = dict(record["plug"])
    length = options.pop("baked")
    new = plugged(root) is None
    if new:
        plug(root, **options)
    else:
        check_same(options, need(root).options, directory)
    flows = flows_of(root)
    baking = length is not None and flows.length is None
    own = {name: tuple(tensor.shape) for name, tensor in flows.state_dict().items()}
    own = flows.baked_shapes(length) if baking else own
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if own != given:
        differ = sorted(name for name in own.keys() | given.keys() if own.get(name) != given.get(name))
        name = differ[0]
        if new:
            unplug(root)
        raise PlugError(
            f"the flow in {directory} is not one of this model, which has another depth or width, or is "
            f"plugged otherwise: '{name}' is {given.get(name, 'missing')} there and "
            f"{own.get(name, 'missing')} here"
        )
    if baking:
        bake(root, length)
    flows.load_state_dict(tensors)
    return model


def check_same(saved: Mapping[str, Any], own: Mapping[str, Any], directory: str | Path) -> None:
    """Refuse a flow of a model that is plugged otherwise.

    Args:
        saved: options of the flow's model.
        own: options of the model that is to have it.
        directory: where the flow comes from, for messages.

    Raises:
        PlugError: if they differ in more than how a flow begins, or is solved and trained.
    """
    for name, value in saved.items():
        # neither blocks nor projections have an order
        here, there = (sorted(v) if isinstance(v, list | tuple) else v for v in (own[name], value))
        if name not in _FREE and here != there:
            raise PlugError(
                f"the flow in {directory} is plugged otherwise than this model: {name} is {there} there and "
                f"{here} here"
            )


def _json(file: Path) -> dict[str, Any]:
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlugError(f"{file} cannot be read ({error})") from error
    if not isinstance(read, dict):
        raise PlugError(f"{file} holds no JSON object")
    return read


def read_tensors(files: Sequence[Path], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it.

    Raises:
        PlugError: if a file cannot be read.
    """
    tensors = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (it has no iteration)
                    if name.startswith(prefix):
                        tensors[name.removeprefix(prefix)] = opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise PlugError(f"{file} cannot be read ({error})") from error
    return tensors


def _class(name: str) -> Any:
    kind = getattr(transformers, name, None)
    if kind is None:
        raise PlugError(f"transformers has no model class '{name}'; give the model to load the flow into")
    return kind
