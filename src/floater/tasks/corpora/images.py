"""Labelled images from a folder for each class, or the digits of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from floater.errors import DataError

DIGITS = "digits"
_PARTS = {"train": slice(0, 1200), "valid": slice(1200, 1400), "test": slice(1400, None)}


class Image(NamedTuple):
    """Pixels (channels, height, width) with values from 0 to 1, and the name of the class."""

    pixels: Tensor
    label: str


def resized(pixels: Tensor, size: int) -> Tensor:
    """Return pixels (channels, height, width) scaled to a square of `size`, bilinear and antialiased.

    Example:
        >>> resized(torch.ones(1, 8, 12), 4).shape
        torch.Size([1, 4, 4])
    """
    scaled = F.interpolate(pixels[None], size=(size, size), mode="bilinear", antialias=True)
    return scaled[0]


def read_images(source: str | Path, part: str, channels: int) -> list[Image]:
    """Read the images of a part, "train", "valid" or "test".

    Args:
        source: folder with a folder for each part, or for "test" the folder of that part itself; the folder
            of a part has a folder of images for every class. Or "digits", the digits of scikit-learn.
        part: name of the part.
        channels: number of colour channels: 1 (grey) or 3 (colours).

    Raises:
        DataError: if there is no such folder, it contains no image, or an image cannot be read.

    Example:
        >>> image = read_images("digits", "test", 1)[0]
        >>> image.pixels.shape, image.label in "0123456789"
        (torch.Size([1, 8, 8]), True)
    """
    if str(source) == DIGITS:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))[_PARTS[part]]
        shape = channels, *digits.images.shape[1:]
        pixels = torch.from_numpy(digits.images[order] / 16).float()[:, None].expand(-1, *shape)
        return [Image(*pair) for pair in zip(pixels, map(str, digits.target[order]), strict=True)]
    folder = Path(source) if part == "test" else Path(source) / part
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; it must hold a folder of images for each class")
    files = sorted(path for path in folder.glob("*/*") if path.is_file() and not path.name.startswith("."))
    if not files:
        raise DataError(f"{folder} holds no image in a folder of a class")
    return [Image(read_image(path, channels), path.parent.name) for path in files]


def read_image(path: Path, channels: int) -> Tensor:
    """Read an image file as (channels, height, width), with values from 0 to 1.

    Raises:
        DataError: if the file is not a readable image.
    """
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    try:
        with Pillow.open(path) as image:
            pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"), dtype=np.float32) / 255
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{path} is no image that can be read: {error}") from error
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], channels).permute(2, 0, 1)
