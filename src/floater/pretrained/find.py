"""Search for the bodies of a model and their projections."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from floater.pretrained.adapters import is_copied
from floater.pretrained.families import (
    CROSS,
    FAMILIES,
    INTERLEAVED,
    LAYOUTS,
    OTHERWISE,
    RECURRENT,
    TRANSPOSED,
    Family,
    Fused,
    PlugError,
    from_table,
)

TEXT = {"input_ids", "inputs_embeds"}
"""Arguments of models that read tokens."""

_KEY_HEADS = "num_key_value_heads", "num_kv_heads"


@dataclass(frozen=True)
class Projection:
    """A projection of an attention module.

    Args:
        path: name of the projection in the body.
        module: module of the projection.
        parts: names of the parts of its output.
        widths: widths of the parts.
        head: width of a head if each head consists of all parts in turn, else None.
        cross: True if it belongs to cross-attention.
        blocks: indices of the blocks in which it is used, in the order of its calls.
    """

    path: str
    module: nn.Module
    parts: tuple[str, ...]
    widths: tuple[int, ...]
    head: int | None
    cross: bool
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class BodySpec:
    """Description of a body and of its projections that can be plugged.

    Args:
        path: name of the body in the model.
        family: description of its family.
        depth: number of blocks.
        projections: all projections that can be plugged.
    """

    path: str
    family: Family
    depth: int
    projections: tuple[Projection, ...]


def find_bodies(model: nn.Module, table: Mapping[str, str] | None) -> list[BodySpec]:
    """Return the bodies of a model that have attention.

    A body is a Hugging Face model that directly contains blocks: the encoder and the decoder of a
    translation model are two bodies.

    Args:
        model: the model.
        table: names of projections that replace those of the known family; see `from_table`.

    Raises:
        PlugError: if there is nothing to plug; the message names the modules that were searched for.
    """
    bodies = {path: part for path, part in model.named_modules() if isinstance(part, PreTrainedModel)}
    if not bodies:
        raise PlugError(
            f"{type(model).__name__} is no Hugging Face model and holds none; looked for a "
            "transformers.PreTrainedModel"
        )
    specs, unknown, searched = [], [], []
    for path, body in bodies.items():
        kind = str(body.config.model_type)
        if kind in RECURRENT:
            raise PlugError(
                f"{type(body).__name__} has no attention: its recurrence takes tokens in their order, and "
                "there are no queries, keys and values for position biases to be added to"
            )
        inner = tuple(other + "." for other in bodies if other != path and is_inside(other, path))
        family = FAMILIES.get(kind)
        if table is not None:
            family = replace(family or Family(()), attention=from_table(table), cross=None)
        where = body, path, inner
        spec = _spec_by_names(*where) if family is None else _body_spec(*where, family)
        if spec is None:
            unknown.append(f"'{kind}'")
            continue
        if spec.projections:
            if type(body).__name__ in TRANSPOSED:
                raise PlugError(
                    f"{type(body).__name__} projects (length, batch, width), not (batch, length, width); "
                    "such projections cannot be plugged"
                )
            specs.append(spec)
        names = sorted({part.module for part in (*spec.family.attention, *(spec.family.cross or ()))})
        searched.append(f"modules of {type(body).__name__} that hold {', '.join(names)}")
    if not specs:
        if unknown:
            searched.append(
                f"the model types {', '.join(dict.fromkeys(unknown))} in floater.pretrained.FAMILIES"
            )
        if any(map(reads_text, bodies.values())):
            advice = (
                "For another model give the names of its projections, such as "
                f"projections={{'query': 'q_proj', 'key': 'k_proj', 'value': 'v_proj'}}{text_advice(model)}"
            )
        else:
            counted = [kind for kind, family in FAMILIES.items() if family.length is not None]
            advice = f"Of models of images and speech it takes {', '.join(counted)}"
        raise PlugError(
            f"nothing to plug in {type(model).__name__}: looked for {'; '.join(dict.fromkeys(searched))}. "
            f"{advice}"
        )
    return specs


def text_advice(model: nn.Module) -> str:
    """Return the advice to plug the parts of a model that read text, or "" if all of its parts do.

    Args:
        model: model that is or contains models of Transformers.
    """
    bodies = {path: part for path, part in model.named_modules() if isinstance(part, PreTrainedModel)}
    leaves = [
        path for path in bodies if not any(path != other and is_inside(other, path) for other in bodies)
    ]
    reading = [path for path in leaves if reads_text(bodies[path])]
    if not reading or len(reading) == len(leaves):
        return ""
    return f"; plug the part that reads text, {' or '.join(map(repr, reading))}"


def reads_text(body: nn.Module) -> bool:
    """Return whether a model of Transformers reads tokens."""
    return not TEXT.isdisjoint(inspect.signature(type(body).forward).parameters)


def plain_parts(model: nn.Module, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with classes, of the Hugging Face models in a model that are apart from its bodies.

    Args:
        model: the model.
        paths: names of its bodies in it.
    """
    plain: dict[str, str] = {}
    for path, part in model.named_modules():
        apart = not any(is_inside(body, path) or is_inside(path, body) for body in paths)
        if isinstance(part, PreTrainedModel) and apart and not any(is_inside(path, other) for other in plain):
            plain[path] = f"{path} ({type(part).__name__})"
    return tuple(plain.values())


def is_inside(path: str, outer: str) -> bool:
    """Return whether a part of a model, by its path, is another part or inside it.

    Example:
        >>> is_inside("encoder.layer", "encoder"), is_inside("encoder", ""), is_inside("encoders", "encoder")
        (True, True, False)
    """
    return not outer or f"{path}.".startswith(f"{outer}.")


def _spec_by_names(body: PreTrainedModel, path: str, inner: Sequence[str]) -> BodySpec | None:
    """Return the description of a body that reads text, by the names of its projections; None if unclear.

    Exactly one of the layouts has to occur, with queries as wide as the heads that share the keys: the
    projection of queries of some models also returns a gate.
    """
    if not reads_text(body) or body.config.model_type in OTHERWISE:
        return None
    try:
        specs = [_body_spec(body, path, inner, Family(layout)) for layout in LAYOUTS]
    except PlugError:
        return None
    specs = [spec for spec in specs if spec.projections]
    if len(specs) != 1:
        return None
    projections = specs[0].projections  # queries, keys and values of each attention module in turn
    for query, key in zip(projections[::3], projections[1::3], strict=True):
        attention = body.get_submodule(query.path.rpartition(".")[0])
        if query.widths[0] != key.widths[0] * _heads_of_a_key(body.config, attention):
            return None
    return specs[0]


def _heads_of_a_key(config: Any, attention: nn.Module) -> int:
    """Return how many heads share the keys of one."""
    groups = getattr(attention, "num_key_value_groups", None)
    if groups is None:
        heads = getattr(config, "num_attention_heads", 1)
        groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
    return int(groups)


def _body_spec(body: PreTrainedModel, path: str, inner: Sequence[str], family: Family) -> BodySpec:
    attentions: list[tuple[str, nn.Module, bool, int]] = []
    count = 0
    for name, module in body.named_modules():
        if f"{path}.{name}.".lstrip(".").startswith(tuple(inner)):
            continue
        cross = not CROSS.isdisjoint(name.split("."))
        parts = _fused(family, cross)
        if all(isinstance(getattr(module, part.module, None), nn.Module) for part in parts):
            if "cache_params" in inspect.signature(type(module).forward).parameters:
                continue  # linear attention, which masks its input, so that its state would add up padding
            count += not cross
            attentions.append((name, module, cross, count - 1))
    uses = [[i] for i in range(count)] if family.uses is None else family.uses(body.config, count)
    projections = []
    for name, module, cross, index in attentions:
        for part in _fused(family, cross):
            projection = getattr(module, part.module)
            if is_copied(projection):
                raise PlugError(
                    f"modules_to_save has a copy of {name}.{part.module}; plug other projections, or adapt it"
                )
            # PEFT names the layer that an adapter wraps base_layer; it remains when the adapter is merged.
            projection = getattr(projection, "base_layer", projection)
            widths = _widths(body.config, projection, part, f"{name}.{part.module}")
            head = None if part.head is None else int(getattr(module, part.head))
            projections.append(
                Projection(
                    f"{name}.{part.module}", projection, part.parts, widths, head, cross, tuple(uses[index])
                )
            )
    return BodySpec(path, family, sum(map(len, uses)), tuple(projections))


def _fused(family: Family, cross: bool) -> tuple[Fused, ...]:
    return family.cross if cross and family.cross is not None else family.attention


def _widths(config: Any, projection: nn.Module, part: Fused, name: str) -> tuple[int, ...]:
    width = getattr(projection, "nf" if isinstance(projection, Conv1D) else "out_features", None)
    if width is None:
        raise PlugError(f"{name} is a {type(projection).__name__}; a projection must be linear")
    count = len(part.parts)
    if count == 1:
        return (width,)
    if config.model_type in INTERLEAVED and part.head is None:
        raise PlugError(
            f"{name} of a '{config.model_type}' model holds {', '.join(part.parts)} of each head in turn; "
            "such a projection cannot be plugged by a table"
        )
    heads = int(getattr(config, "num_attention_heads", 1))
    if part.grouped:
        shared = int(config.num_key_value_heads)
        each = width // (heads + (count - 1) * shared)
        return tuple(each * (heads if name == "query" else shared) for name in part.parts)
    grouped = any(getattr(config, name, None) not in (None, heads) for name in _KEY_HEADS)
    if grouped or getattr(config, "multi_query", False) or width % (count * heads):
        raise PlugError(
            f"{name} holds {', '.join(part.parts)} of unequal widths in {width} outputs; "
            "such a projection cannot be plugged"
        )
    return (width // count,) * count
