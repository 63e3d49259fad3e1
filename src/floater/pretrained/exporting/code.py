"""Models with the code of their class, for Transformers with `trust_remote_code`."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.models.auto import modeling_auto

from floater.pretrained.body import BodyState
from floater.pretrained.clocks import Clocks, Turn
from floater.pretrained.exporting.errors import ExportError
from floater.pretrained.exporting.plain import check_weights, check_whole, without_record
from floater.pretrained.extending import rotary
from floater.pretrained.extending.install import extension_settings
from floater.pretrained.find import find_bodies
from floater.pretrained.host import CODE, inner, part_at
from floater.pretrained.plugged import flows_of, plug_state, plugged

_HEADS = GenericForQuestionAnswering, GenericForSequenceClassification, GenericForTokenClassification
"""Heads that build their body by `AutoModel`, which knows the written configuration by `_BODY` alone."""

_BODY = '''

class Floater{body}({body}):
    """The body of the model, which its head builds by `AutoModel`."""

    config_class = Floater{config}


AutoModel.register(Floater{config}, Floater{body}, exist_ok=True)
'''

_NAMES = """

if int(transformers.__version__.partition(".")[0]) < 5:  # it would start weights of other names at random
    raise ImportError(
        f"the weights of this model have the names of Transformers 5, and this is {transformers.__version__}"
    )
"""
"""Code for models whose weights have other names in Transformers 4."""


@torch.no_grad()
def write_code(model: Any, directory: Path) -> tuple[str, Any]:
    """Write a model and the code of its class, which needs torch and Transformers alone.

    Args:
        model: plugged model with one body, baked or with clocks, or model extended by "self_extend" or
            "log_n".
        directory: directory that is created if it does not exist.

    Returns:
        The name of the class that it inherits from, and the configuration that was written.

    Raises:
        ExportError: if there is no code for the model.
    """
    model = inner(model)
    check_whole(model)
    settings: Any = extension_settings(model)
    method = None if settings is None else settings["method"]
    if method not in (("self_extend", "log_n") if plugged(model) is None else (None,)):
        state = "neither" if method is None else f"extended by '{method}'"
        state = state if plugged(model) is None else f"plugged and {state}"
        raise ExportError(
            "code is written for plugged models, baked or with clocks, and for those of 'self_extend' and "
            f"'log_n'; this {type(model).__name__} is {state}"
        )
    config = copy.deepcopy(model.config)
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("floater.")}
    check_weights(type(model), config, weights)
    if method is None and "clock" in plug_state(model).options:
        template, config.clocks = "modeling_clocks", _clocks(model)
        weights |= {f"clocks.{name}": value for name, value in model.floater.state_dict().items()}
    elif method is None:
        template, config.position_biases, tables = "modeling_plugged", *_biases(model)
        weights |= tables
    else:
        template, config.attention_positions = "modeling_attention", _attention(model, settings)
    without_record(config, settings)
    if not (autos := _auto_classes(model)):
        raise ExportError(
            f"no Auto class of transformers loads a {type(model).__name__}; export one with a head"
        )
    kind: Any = _written_class(type(model), template, directory, renamed=_has_other_names(model))
    fields = {**config.to_dict(), "model_type": kind.config_class.model_type}
    copied = kind.from_pretrained(
        None,
        config=kind.config_class.from_dict(fields),
        state_dict=weights,
        dtype=type(model).dtype.fget(model),
    )
    copied.config.auto_map = {
        "AutoConfig": f"{CODE}.{kind.config_class.__name__}",
        **dict.fromkeys(autos, f"{CODE}.{kind.__name__}"),
    }
    if hasattr(model, "generation_config"):
        copied.generation_config = copy.deepcopy(model.generation_config)
    copied.save_pretrained(directory)
    return type(model).__name__, copied.config


def _written_class(base: Any, template: str, directory: Path, *, renamed: bool) -> Any:
    """Write the file of a class and return the class.

    Args:
        base: class that it inherits from.
        template: name of the file that it is written from.
        directory: directory of the file.
        renamed: whether weights have other names in Transformers 4.

    Raises:
        ExportError: if the class that it inherits from is not one of Transformers.
    """
    config = base.config_class
    listed: Any = getattr(transformers, base.__name__, object)
    if listed is not base:
        raise ExportError(f"{base.__name__} is not a class of transformers, from which code could import it")
    family, head = ("Bert", "BertModel") if template == "modeling_plugged" else ("Llama", "LlamaForCausalLM")
    text = (Path(__file__).parent / f"{template}.py").read_text(encoding="utf-8")
    for old, new in (
        ("FloaterModel", f"Floater{base.__name__}"),
        ("FloaterConfig", f"Floater{config.__name__}"),
        (f'"floater_{family.lower()}"', f'"floater_{config.model_type}"'),
        (f"import {family}Config, {head}", f"import {config.__name__}, {base.__name__}"),
        (f"({family}Config)", f"({config.__name__})"),
        (f"({head})", f"({base.__name__})"),
    ):
        text = text.replace(old, new)
    if issubclass(base, _HEADS):
        kind: Any = transformers.MODEL_MAPPING[config]
        body = kind.__name__
        text = text.replace("from transformers import", f"from transformers import AutoModel, {body},", 1)
        text += _BODY.format(body=body, config=config.__name__)
    if renamed:
        text = text.replace("\nimport torch\n", "\nimport torch\nimport transformers\n", 1) + _NAMES
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{CODE}.py"
    file.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(CODE, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[CODE] = importlib.util.module_from_spec(spec)  # Transformers reads its source there
    spec.loader.exec_module(module)
    return getattr(module, f"Floater{base.__name__}")


def _has_other_names(model: Any) -> bool:
    """Return whether the weights of a model had other names when Transformers first released its class."""
    weights = {name: torch.empty_like(x, device="meta") for name, x in model.state_dict().items()}
    return bool(revert_weight_conversion(model, weights).keys() != weights.keys())


def _auto_classes(model: Any) -> list[str]:
    """Return the names of the Auto classes that load models of a class."""
    names = []
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and type(model.config) in mapping:
            classes = mapping[type(model.config)]
            if type(model) in (classes if isinstance(classes, tuple) else (classes,)):
                names.append(name)
    return names


def _biases(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings and the weights of the code for a plugged model.

    Raises:
        ExportError: if it is not baked, or the positions of its tokens are not those of one body.
    """
    flows, name = flows_of(model), type(model).__name__
    if flows.length is None:
        raise ExportError(f"this {name} is not baked; bake it first (floater.bake(model, length))")
    bodies = [body for _, body in plug_state(model).forwards]
    if len(bodies) != 1 or bodies[0].reads_source:
        raise ExportError(
            f"{name} has flows over two inputs (an encoder's and a decoder's, or text and image); code is "
            "written for models with one"
        )
    (body,) = bodies
    state = BodyState()
    positions = torch.arange(flows.length, device=next(flows.buffers()).device)[None]
    for field, vectors in flows(body.site, positions, flows.length).items():
        state.vectors[body.site, field] = vectors
    projections, tables = {}, {}
    with body.running(state):
        for injection in body.injections:
            width = sum(injection.widths)
            shape = torch.Size((1, flows.length, width))
            calls = [
                injection.vectors(use, shape)[0] if any(use) else positions.new_zeros(flows.length, width)
                for use in injection.uses
            ]
            table = torch.stack([call.to(next(flows.buffers()).dtype) for call in calls])
            projections[injection.path] = list(table.shape)
            tables[f"position_biases.{injection.path.replace('.', '__')}"] = table
    tokens = {"image": body.family.length is not None, "padding": body.padding}
    return {"body": body.path, "projections": projections, "tokens": tokens}, tables


def _clocks(model: nn.Module) -> dict[str, Any]:
    """Return the settings of the code for a model with clocks.

    Raises:
        ExportError: if an attention module is no longer there or has lost its clock.
    """
    clocks = cast(Clocks, model.floater)
    parts = [part_at(model, path) for path in plug_state(model).turns]
    hooks = [hook for part in parts if part is not None for hook in part._forward_pre_hooks.values()]
    turns = [hook for hook in hooks if isinstance(hook, Turn)]
    if len(turns) != len(clocks.weight):
        raise ExportError(
            f"{len(turns)} of the {len(clocks.weight)} attention modules of this {type(model).__name__} with "
            "a clock are in their place; plug the model again"
        )
    return {
        "rate": clocks.rate,
        "width": clocks.weight.shape[1],
        "blocks": turns[0].blocks,
        "rotations": [
            {name: getattr(turn.rotation, name) for name in ("path", "block", "frequencies", "layout")}
            for turn in turns
        ],
    }


def _attention(model: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the code for a model with grouped distances or a temperature.

    Raises:
        ExportError: if the attention of the model is not that of the code.
    """
    bodies, name = rotary.rotary_bodies(model), type(model).__name__
    (body, *others) = bodies
    (specification,) = find_bodies(body, None)
    paths = dict.fromkeys(f"{p.path}".rpartition(".")[0] for p in specification.projections)
    modules: list[Any] = [body.get_submodule(each) for each in paths]
    capped = getattr(body.config, "attn_logit_softcapping", None) is not None
    if others or capped or not modules[0].is_causal or not settings.get("halves", True):
        raise ExportError(
            f"{name} has attention that the code does not compute (of both sides, with a cap of logits, or "
            "with another rotation); use it with this library"
        )
    (attention,) = {each.split(".", 2)[2] for each in paths}
    path = next(path for path, part in model.named_modules() if part is body)
    (part,) = rotary.rotary_parts(body)
    holder = body.get_submodule(part)
    full = "full_attention_inv_freq"
    return {
        "trained": settings["old"],
        "group": settings.get("group"),
        "temperature": settings["temperature"],
        "grouped": [module.floater_grouped for module in modules],
        "body": path,
        "rotary": part,
        "frequencies": full if hasattr(holder, full) else "inv_freq",
        "attention": attention,
    }
