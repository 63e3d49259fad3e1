"""Extension of tables of positions: of tokens, and of the patches of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from floater.pretrained.extending import continuation
from floater.pretrained.extending.errors import ExtendError
from floater.pretrained.extending.extension import Extension, check_longer
from floater.pretrained.extending.tables import Table, image_side, lengthen


def extend_tables(
    model: nn.Module, tables: list[Table], length: int, method: str, options: Mapping[str, Any]
) -> Extension:
    """Replace tables of tokens by longer ones.

    Args:
        model: model that contains the tables.
        tables: its tables of tokens.
        length: number of tokens to support.
        method: name of the method, a key of `continuation.METHODS` or "sinusoid".
        options: `special`, the numbers of vectors at both ends that are not continued; by default (1, 1).

    Returns:
        A summary of the extension.

    Raises:
        ExtendError: if the length or the option is not valid, or the method does not reach the length.
    """
    old = max(table.length for table in tables)
    check_longer(length, old)
    special = options.get("special", (1, 1))
    if (
        not isinstance(special, tuple | list)
        or len(special) != 2
        or any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in special)
    ):
        raise ExtendError(
            f"special is {special!r}; it must be two whole numbers, of the first and last vectors"
        )
    if sum(special) + 2 > min(table.length for table in tables):
        raise ExtendError(f"special is {special!r}, but there are {old} vectors; at least 2 must be left")
    # all are computed before the first is replaced
    try:
        weights = [_continued(table, length, method, (special[0], special[1])) for table in tables]
    except ValueError as error:
        raise ExtendError(f"{type(model).__name__} cannot be extended by {method!r}: {error}") from error
    for table, weight in zip(tables, weights, strict=True):
        for config in table.configs:
            lengthen(config, table.length, length, len(table.weight))
        table.replace(weight)
    return Extension(method, "table", old, length, method != "interpolation")


def _continued(table: Table, length: int, method: str, special: tuple[int, int]) -> Tensor:
    first, rows = table.weight[: table.first], table.weight[table.first :]
    if method != "sinusoid" and table.computed:
        raise ValueError("its code computes its sinusoids anew when it is loaded; method must be 'sinusoid'")
    if method == "sinusoid":
        return torch.cat((first, continuation.sinusoids(rows, length)))
    return torch.cat((first, continuation.continue_table(rows, length, method, special=special)))


def extend_image_table(table: Table, length: int, method: str) -> Extension:
    """Replace a table of patches by that of a larger image.

    Args:
        table: table of the patches of a square image.
        length: side of the larger image in pixels.
        method: name of the method, a key of `continuation.METHODS`.

    Returns:
        A summary of the extension.

    Raises:
        ExtendError: if images or patches are not square, the length is not valid, or the method does not
            apply.
    """
    old, patch = image_side(table), table.body.config.patch_size
    if not isinstance(patch, int):
        raise ExtendError(f"patch_size is {patch}; only square patches are extended")
    check_longer(length, old, "images of {0} x {0} pixels")
    if length % patch:
        raise ExtendError(f"length is {length}; it must be a multiple of the patches' side, {patch}")
    side, new = old // patch, length // patch
    rows = table.weight
    if method == "interpolation":  # the model's own, bicubic
        if not hasattr(table.holder, "interpolate_pos_encoding"):
            raise ExtendError(
                f"{type(table.body).__name__} does not interpolate its positions; method must be 'flow', "
                "'repeat' or 'hierarchical'"
            )
        tokens = rows.new_zeros(1, table.first + new * new, rows.shape[1])
        holder: Any = table.holder
        larger = holder.interpolate_pos_encoding(tokens, length, length)[0]
    else:
        try:
            grid = continuation.continue_grid(rows[table.first :], (side, side), (new, new), method)
        except ValueError as error:
            raise ExtendError(str(error)) from error
        larger = torch.cat((rows[: table.first], grid))
    for config in table.configs:
        config.image_size = length
    table.replace(larger)
    for part in table.holder.modules():
        for name, value in (("image_size", length), ("num_patches", new * new), ("num_positions", new * new)):
            if (before := getattr(part, name, None)) is not None:
                setattr(part, name, (value, value) if isinstance(before, tuple | list) else value)
    return Extension(method, "image", old, length, False)
