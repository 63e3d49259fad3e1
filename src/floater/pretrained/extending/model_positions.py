"""The positions of a model that can be extended."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace

from torch import nn
from transformers import PreTrainedModel

from floater.errors import first_line
from floater.pretrained.extending import biases, native, rotary, stored
from floater.pretrained.extending.dry_run import DryRun
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import DESCRIPTIONS, Kind
from floater.pretrained.extending.tables import Table, find_tables, image_side
from floater.pretrained.find import TEXT

_TOKENS = TEXT | {"hidden_states"}
"""Arguments of bodies that read texts."""


@dataclass(frozen=True)
class ModelPositions:
    """The positions of a model, and how it can be run alone.

    Args:
        kind: kind of positions: "table", "image", "rotary" or "bias".
        tables: tables that outputs depend on, of texts or of images.
        bodies: rotary bodies that outputs depend on.
        unread_bodies: other rotary bodies.
        scaling: scaling that the rotary bodies have already; None for none.
        biased: parts of the model that add biases of distances.
        runners: names of the parts that run on a text or an image alone, with whether they take images.
        stored: True if the frequencies of the rotary bodies are weights.
    """

    kind: Kind
    tables: list[Table]
    bodies: list[PreTrainedModel]
    unread_bodies: list[PreTrainedModel]
    biased: list[nn.Module]
    runners: dict[str, bool]
    scaling: str | None = None
    stored: bool = False


def find_positions(model: nn.Module, dry_run: DryRun, length: int, method: str | None) -> ModelPositions:
    """Return the positions of a model that can be extended.

    Args:
        model: model to extend.
        dry_run: dry run of its configuration.
        length: requested length, for the message if there are none.
        method: name of the method, None for the default.

    Raises:
        ExtendError: if there are none, they are of several kinds, no output depends on them, or the method
            cannot change them.
    """
    name = type(model).__name__
    tables, bodies = find_tables(model), rotary.rotary_bodies(model)
    biased = biases.biased_parts(model)
    if not tables and not bodies and not biased:
        raise _nothing_to_extend(dry_run, name, length)
    if biased:
        paths = {part: path for path, part in model.named_modules()}
        runners = {dry_run.runner(paths[part], 4, image=False)[0]: False for part in biased}
        return ModelPositions("bias", [], [], [], biased, runners)
    images = [table for table in tables if table.image]
    if len(images) < len(tables) or bodies:  # the length of a model of texts and images is that of texts
        tables, images = [table for table in tables if not table.image], []
    if len(images) > 1:
        raise ExtendError(f"{name} has {len(images)} grids of patches; extend the parts one by one")
    positions = _read_positions(model, dry_run, tables, bodies, method)
    if positions.kind != "rotary":
        return positions
    if any(map(stored.stores_frequencies, positions.bodies)):
        return replace(positions, stored=True)
    for body in positions.bodies:
        rotary.check(body)
    return replace(positions, scaling=_scaling(positions.bodies))


def _nothing_to_extend(dry_run: DryRun, name: str, length: int) -> ExtendError:
    """Return the refusal of a model whose positions are not known, by whether it takes the length."""
    if not any(map(_reads_texts, dry_run.parts.values())):
        return _no_text(name)
    try:
        for root in dry_run.roots:
            dry_run.run(root, length, image=False)
    except Exception as error:  # any error of the code of any model
        return ExtendError(
            f"{name} has no positions that can be extended: no table, no rotary ones that its configuration "
            f"scales, no biases that are known; it does not take {length} tokens ({first_line(error)})"
        )
    return ExtendError(
        f"{name} takes {length} tokens already: it has no positions, or computes them for any length"
    )


def _no_text(name: str) -> ExtendError:
    return ExtendError(
        f"{name} reads no text: positions of tokens and of the patches of square images are extended, not "
        "those of frames; extend the part of the model that reads texts"
    )


def _reads_texts(part: nn.Module) -> bool:
    """Return whether a part of a model is a model that reads texts."""
    names = inspect.signature(type(part).forward).parameters
    return isinstance(part, PreTrainedModel) and not _TOKENS.isdisjoint(names) and "grid_thw" not in names


def _scaling(bodies: list[PreTrainedModel]) -> str | None:
    """Return the scaling that rotary bodies have already, or None.

    Raises:
        ExtendError: if it differs among them, or cannot be made wider.
    """
    kinds = {native.scaling(body.config) for body in bodies}
    if len(kinds) > 1:
        names = " and ".join(sorted(str(kind) for kind in kinds))
        raise ExtendError(f"parts of the model are scaled by {names}; extend the parts one by one")
    (kind,) = kinds
    if kind is not None and kind not in native.KINDS:
        raise ExtendError(
            f"the rotary positions are scaled by {kind!r}; of the scalings, {', '.join(native.KINDS)} are "
            "made wider"
        )
    return kind


def _read_positions(
    model: nn.Module,
    dry_run: DryRun,
    tables: list[Table],
    bodies: list[PreTrainedModel],
    method: str | None,
) -> ModelPositions:
    """Return the tables and rotary bodies that the outputs of a model depend on, by a dry run."""
    paths = {part: path for path, part in model.named_modules()}
    image = any(table.image for table in tables)
    if image:
        short = image_side(tables[0])
    else:
        short = min([64, *(t.length for t in tables), *(b.config.max_position_embeddings for b in bodies)])
    names = {table: _tensor_name(table, paths) for table in tables}
    dry_run.mark({name: name for name in names.values()})
    for body in bodies:
        rotary.mark(body, paths[body], dry_run)
    runners, reached = {}, set[str]()
    for body in dict.fromkeys([*(table.body for table in tables), *bodies]):
        if image or _reads_texts(body):
            runner, marks = dry_run.runner(paths[body], short, image=image)
            runners[runner] = image
            reached |= marks
    read_tables = [table for table in tables if names[table] in reached]
    read_bodies = [b for b in bodies if {paths[b], rotary.ROTATION + paths[b]} & reached]
    if method == "clex" and (apart := [body for body in read_bodies if paths[body] not in reached]):
        raise ExtendError(
            f"{type(apart[0]).__name__} computes its frequencies in each pass; 'clex' cannot change them"
        )
    if not runners:
        raise _no_text(type(model).__name__)
    if not read_tables and not read_bodies:
        kind: Kind = "rotary" if not tables else "image" if image else "table"
        layers = [layer for body in bodies for layer in getattr(body.config, "layer_types", None) or ()]
        where = (
            "in layers with a window, which have no new distances"
            if "sliding_attention" in layers
            else ("but with its configuration no output depends on them")
        )
        raise ExtendError(
            f"{type(model).__name__} has {DESCRIPTIONS[kind]}, {where}, so an extension would change "
            "nothing: it takes any length as it is"
        )
    near = [{rotary.NEAR + paths[b], rotary.FAR + paths[b]} & reached for b in read_bodies]
    if not read_tables and method != "log_n" and near == [{rotary.NEAR + paths[b]} for b in read_bodies]:
        raise ExtendError(
            f"{type(read_bodies[0]).__name__} rotates in layers with a window alone, where longer texts have "
            "no new distances: it takes any length as it is, and an extension would only change shorter texts"
        )
    if not image:  # the first token of a text shows which row is that of the first position
        first = dry_run.shapes.first
        read_tables = [replace(table, first=first.get(names[table], table.first)) for table in read_tables]
    unread = [body for body in bodies if body not in read_bodies]
    kind = "rotary" if not read_tables else "image" if image else "table"
    return ModelPositions(kind, read_tables, read_bodies, unread, [], runners)


def _tensor_name(table: Table, paths: dict[nn.Module, str]) -> str:
    """Return the name of the tensor of a table in the model."""
    embedding = isinstance(getattr(table.holder, table.name), nn.Module)
    return ".".join(filter(None, (paths[table.holder], table.name, "weight" if embedding else "")))
