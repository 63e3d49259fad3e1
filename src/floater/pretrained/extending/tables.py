"""Tables of positions in models of Transformers, and their replacement by larger ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from floater.pretrained.extending import continuation
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.find import is_inside

NAMES = (
    "position_embeddings", "position_embedding", "embed_positions", "wpe", "positions_embed",
    "position_embeds_layer", "pos_encoding", "positional_embedding",
)  # fmt: skip
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_target_positions",
    "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
)


@dataclass(frozen=True)
class Table:
    """A table of positions, learned or of sinusoids.

    Args:
        around: models of Transformers that contain the table, from the outermost.
        holder: module that directly contains the table.
        name: name of the table in this module: an embedding, a parameter (1, rows, dim), or a buffer of
            sinusoids (rows, dim).
        first: number of rows before that of the first position: those of padding, or of [CLS] before the
            patches of an image.
        image: True if the positions are the patches of an image.
    """

    around: tuple[PreTrainedModel, ...]
    holder: nn.Module
    name: str
    first: int
    image: bool

    @property
    def body(self) -> PreTrainedModel:
        """Return the innermost of the models that contain the table."""
        return self.around[-1]

    @property
    def configs(self) -> list[Any]:
        """Return the configurations that declare the number of positions.

        A model of which an encoder-decoder is made gets a new configuration, but its parts keep the old one.
        """
        kind = self.body.config.model_type
        configs = [model.config for model in self.around if model.config.model_type == kind]
        return list({id(config): config for config in configs}.values())

    @property
    def weight(self) -> Tensor:
        """Return the vectors, (rows, dim)."""
        part: Any = getattr(self.holder, self.name)
        weight: Tensor = getattr(part, "weight", part)  # of an embedding
        return (weight[0] if weight.ndim == 3 else weight).detach()

    @property
    def computed(self) -> bool:
        """Return whether the model's code computes the table, which is not in its files."""
        part = getattr(self.holder, self.name)
        return hasattr(part, "create_weight") or (
            isinstance(part, Tensor) and not isinstance(part, nn.Parameter)
        )

    @property
    def length(self) -> int:
        """Return the number of positions."""
        return len(self.weight) - self.first

    @property
    def sinusoidal(self) -> bool:
        """Return whether the table has the sinusoids of its positions."""
        rows = self.weight[self.first :]
        try:
            continuation.sinusoids(rows, len(rows))
        except ValueError:
            return False
        return True

    def replace(self, weight: Tensor) -> None:
        """Replace the table by a larger one."""
        part: Any = getattr(self.holder, self.name)
        if isinstance(part, nn.Module):
            trained = bool(part.get_parameter("weight").requires_grad)
            part.weight = nn.Parameter(weight, requires_grad=trained)
            if isinstance(part, nn.Embedding):
                part.num_embeddings = len(weight)
        elif isinstance(part, nn.Parameter):
            setattr(self.holder, self.name, nn.Parameter(weight[None], requires_grad=part.requires_grad))
        else:
            setattr(self.holder, self.name, weight)


def find_tables(model: nn.Module) -> list[Table]:
    """Return the tables of positions of tokens and patches in all bodies.

    Args:
        model: model that is or contains models of Transformers.
    """
    bodies = [(path, part) for path, part in model.named_modules() if isinstance(part, PreTrainedModel)]
    tables = []
    for path, holder in model.named_modules():
        for name in NAMES:
            part = getattr(holder, name, None)
            # some tables grow by themselves, and speech encoders take recordings of a fixed length
            if not _is_table(part) or hasattr(part, "make_weight") or hasattr(holder, "conv1"):
                continue
            around = tuple(body for outer, body in bodies if is_inside(path, outer))
            image = hasattr(holder, "patch_embeddings") or hasattr(holder, "patch_embedding")
            if around and (first := _first(holder, part, image)) is not None:
                tables.append(Table(around, holder, name, first, image))
    return tables


def _is_table(part: Any) -> bool:
    if isinstance(part, nn.Module):
        weight = getattr(part, "weight", None)
        return isinstance(weight, nn.Parameter) and weight.ndim == 2
    dimensions = 3 if isinstance(part, nn.Parameter) else 2
    return isinstance(part, Tensor) and part.is_floating_point() and part.ndim == dimensions


def image_side(table: Table) -> int:
    """Return the side of the images that a table of patches was trained on, in pixels.

    Raises:
        ExtendError: if the configuration declares no square size.
    """
    size = getattr(table.body.config, "image_size", None)
    if not isinstance(size, int):
        raise ExtendError(f"image_size is {size}; only square images of a declared size are extended")
    return size


def _first(holder: Any, part: Any, image: bool) -> int | None:
    """Return the number of rows before that of the first position; None if it is not known."""
    if isinstance(part, nn.Parameter):
        patches = getattr(getattr(holder, "patch_embeddings", None), "num_patches", None)
        return len(part[0]) - patches if image and isinstance(patches, int) else None
    if image:
        return 0
    if (offset := getattr(part, "offset", None)) is not None:
        return int(offset)
    padding = getattr(part, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def lengthen(config: Any, old: int, new: int, rows: int) -> None:
    """Write the new number of positions of a table into a configuration.

    Args:
        config: configuration that declares it.
        old: number of positions before.
        new: number of positions now.
        rows: number of rows of the table before; RoBERTa's configuration counts those of padding, too.
    """
    if getattr(config, "max_relative_positions", 1) < 1:  # DeBERTa's table of distances keeps its length
        config.max_relative_positions = config.max_position_embeddings
    for name in _LENGTHS:
        value = getattr(config, name, None)
        if value in (old, rows):
            setattr(config, name, value + new - old)
