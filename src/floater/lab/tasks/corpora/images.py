"""Labelled images from a folder for each class, or the digits of scikit-learn."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import normalize

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from floater.errors import DataError, first_line
from floater.lab.tasks.corpora.leftovers import without_leftovers

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

logger = logging.getLogger(__name__)

DIGITS = "digits"
_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF, and their values
_WHITE_IS_ZERO, _UNSIGNED = 0, 1
_SIXTEEN = ("PNG", "PPM")
"""Formats whose values in Pillow's mode of 32 bits are of 16."""
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
        DataError: if there is no such folder, it contains no image, an image cannot be read, or a file is not
            directly in the folder of a class. Hidden files and folders are skipped (see `is_leftover`).

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
    paths = without_leftovers(folder, _entries(folder))
    files: dict[str, list[Path]] = {
        path.name: [] for path in paths if path.parent == folder and path.is_dir()
    }
    for path in (path for path in paths if path.is_file() or not path.exists()):  # a link may lead nowhere
        depth = len(path.relative_to(folder).parts)
        if depth > 2:
            raise DataError(
                f"{path} is in a folder of its class; images must be directly in that of the class"
            )
        if depth == 2:
            files[path.parent.name].append(path)
        else:
            logger.warning("%s is skipped: it is in no folder of a class", path)
    if not any(files.values()):
        raise DataError(f"{folder} holds no image in a folder of a class")
    if empty := [name for name, inside in files.items() if not inside]:
        logger.warning("%s: folders without an image are not classes: %s", folder, ", ".join(empty))
    # macOS writes names in form NFD
    names = {name: normalize("NFC", name) for name in files}
    return [
        Image(read_image(file, channels), names[name]) for name, inside in files.items() for file in inside
    ]


def _entries(folder: Path) -> Iterator[Path]:
    """Yield all that is below a folder; a folder of a class may be a link, which `rglob` does not enter."""
    for path in folder.iterdir():
        yield path
        if path.is_dir():
            yield from path.rglob("*")


def read_image(path: Path, channels: int) -> Tensor:
    """Read an image file as (channels, height, width), with values from 0 to 1.

    Values are divided by the largest value of their bit depth. The image is rotated by its EXIF orientation,
    and transparent parts become white. Only the first frame of an animation, or page of a document, is read.
    Floating-point values must be from 0 to 1.

    Args:
        path: path of the file.
        channels: number of colour channels: 1 (grey) or 3 (colours).

    Raises:
        DataError: if the file is not a readable image, has more pixels than Pillow allows, or its values have
            no scale: floating-point values outside 0 to 1, or integers of more than 16 bits.
    """
    from PIL import Image as Pillow

    try:
        with Pillow.open(path) as image:
            pixels = _values(image, channels)
    except Exception as error:  # Pillow's readers raise many types of exceptions for damaged files
        raise DataError(f"{path} is not a readable image: {first_line(error)}") from error
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1).expand(channels, -1, -1)


def _values(image: PillowImage, channels: int) -> np.ndarray:
    """Return the values of an opened image from 0 to 1, (height, width) or (height, width, 3).

    Raises:
        ValueError: if the values have no scale.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps

    greatest = _greatest(image)  # the tags of the file, which an image that is turned no longer has
    image = ImageOps.exif_transpose(image)
    if greatest is not None:
        # Pillow would clip these to 8 bits
        values = np.asarray(image, dtype=np.float32) / greatest
        if not (values.min() >= 0 and values.max() <= 1):  # not true of NaN
            raise ValueError(f"its values are from {values.min():g} to {values.max():g}, not from 0 to 1")
        return values
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Pillow.alpha_composite(Pillow.new("RGBA", layer.size, "white"), layer)
    return np.asarray(image.convert("RGB" if channels == 3 else "L"), dtype=np.float32) / 255


def _greatest(image: PillowImage) -> int | None:
    """Return the value of white in an image of one channel with more than 8 bits; None for other images."""
    if image.mode == "F":
        return 1
    if not image.mode.startswith("I"):
        return None
    tags = getattr(image, "tag_v2", {})  # those of TIFF
    bits = tags.get(_BITS, (16 if image.mode != "I" or image.format in _SIXTEEN else 32,))[0]
    if bits > 16 or tags.get(_SAMPLE_FORMAT, (_UNSIGNED,))[0] != _UNSIGNED:
        raise ValueError(f"its values are signed or of {bits} bits; save it with 8 or 16 bits, unsigned")
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        raise ValueError("0 is white in it, and it has more than 8 bits; save it with 0 for black")
    return int(2**bits - 1)
