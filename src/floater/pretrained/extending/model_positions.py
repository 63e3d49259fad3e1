"""The positions of a model that can be extended."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

from torch import nn
from transformers import PreTrainedModel

from floater.pretrained.extending import biases, rotary
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import DESCRIPTIONS, Kind
from floater.pretrained.extending.tables import Table, find_tables, image_side
from floater.pretrained.extending.trial import Trial

_TOKENS = {"input_ids", "inputs_embeds", "hidden_states"}
"""Arguments of bodies that read texts."""


@dataclass(frozen=True)
class ModelPositions:
    """The positions of a model, and how it can be run alone.

    Args:
        kind: kind of positions: "table", "image", "rotary" or "bias".
        tables: learned tables that outputs depend on, of texts or of images.
        bodies: rotary bodies that outputs depend on.
        unread_bodies: other rotary bodies.
        biased: parts of the model that add biases of distances.
        runners: names of the parts that run on a text or an image alone, with whether they take images.
    """

    kind: Kind
    tables: list[Table]
    bodies: list[PreTrainedModel]
    unread_bodies: list[PreTrainedModel]
    biased: list[nn.Module]
    runners: dict[str, bool]


def find_positions(model: nn.Module, trial: Trial, method: str | None) -> ModelPositions:
    """Return the positions of a model that can be extended.

    Args:
        model: model to extend.
        trial: trial of its configuration.
        method: name of the method, None for the default.

    Raises:
        ExtendError: if there are none, they are of several kinds, no output depends on them, or the method
            cannot change them.
    """
    name = type(model).__name__
    tables, bodies = find_tables(model), rotary.rotary_bodies(model)
    biased = [] if tables or bodies else biases.biased_parts(model)
    if not tables and not bodies and not biased:
        raise ExtendError(
            f"{name} has no learned table of positions, no rotary ones and no biases of distances that are "
            "known, so it declares no length that could be extended: recurrences and sinusoids take any"
        )
    if biased:
        return ModelPositions("bias", [], [], [], biased, dict.fromkeys(trial.roots, False))
    images = [table for table in tables if table.image]
    if images and (len(images) < len(tables) or bodies):
        raise ExtendError(f"{name} reads texts and images; extend the part that needs to take more")
    if len(images) > 1:
        raise ExtendError(f"{name} has {len(images)} grids of patches; extend the parts one by one")
    positions = _read_positions(model, trial, tables, bodies, method)
    for body in positions.bodies if positions.kind == "rotary" else ():
        rotary.check(body)
    return positions


def _read_positions(
    model: nn.Module,
    trial: Trial,
    tables: list[Table],
    bodies: list[PreTrainedModel],
    method: str | None,
) -> ModelPositions:
    """Return the tables and rotary bodies that the outputs of a model depend on, by a trial."""
    paths = {part: path for path, part in model.named_modules()}
    image = any(table.image for table in tables)
    if image:
        short = image_side(tables[0])
    else:
        short = min([64, *(t.length for t in tables), *(b.config.max_position_embeddings for b in bodies)])
    names = {table: _tensor_name(table, paths) for table in tables}
    trial.mark({name: name for name in names.values()})
    for body in bodies:
        rotary.mark(body, paths[body], trial)
    runners, reached = {}, set[str]()
    for body in dict.fromkeys([*(table.body for table in tables), *bodies]):
        if image or not _TOKENS.isdisjoint(inspect.signature(type(body).forward).parameters):
            runner, marks = trial.runner(paths[body], short, image=image)
            runners[runner] = image
            reached |= marks
    read_tables = [table for table in tables if names[table] in reached]
    read_bodies = [b for b in bodies if {paths[b], rotary.ROTATION + paths[b]} & reached]
    if method == "clex" and (apart := [body for body in read_bodies if paths[body] not in reached]):
        raise ExtendError(
            f"{type(apart[0]).__name__} computes its frequencies in each pass; 'clex' cannot change them"
        )
    if not read_tables and not read_bodies:
        kind: Kind = "rotary" if not tables else "image" if image else "table"
        raise ExtendError(
            f"{type(model).__name__} has {DESCRIPTIONS[kind]}, but with its configuration no output depends "
            "on them, so an extension would change nothing"
        )
    if not image:  # the first token of a text shows which row is that of the first position
        first = trial.shapes.first
        read_tables = [replace(table, first=first.get(names[table], table.first)) for table in read_tables]
    unread = [body for body in bodies if body not in read_bodies]
    kind = "rotary" if not read_tables else "image" if image else "table"
    return ModelPositions(kind, read_tables, read_bodies, unread, [], runners)


def _tensor_name(table: Table, paths: dict[nn.Module, str]) -> str:
    """Return the name of the tensor of a table in the model."""
    embedding = isinstance(getattr(table.holder, table.name), nn.Embedding)
    return ".".join(filter(None, (paths[table.holder], table.name, "weight" if embedding else "")))
