"""Figures that read in light and in dark mode: SVG whose text and axes follow the scheme."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib import rc_context
from PIL import Image

BLACK, GREY, BLUE, SKY = "#000000", "#999999", "#0072b2", "#56b4e9"
GREEN, ORANGE, VERMILION, PURPLE = "#009e73", "#e69f00", "#d55e00", "#cc79a7"
"""Okabe and Ito's colours, safe for colour-blind readers, and grey."""
STYLE = (
    "<style>:root{%scolor:#000}text{fill:currentColor;font-family:sans-serif!important}"
    "@media(prefers-color-scheme:dark){:root{%scolor:#e2e4e9}}</style>"
)


def svg(figure: Any, name: str, dark: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a figure as SVG on a transparent ground, with black replaced by the colour of the scheme.

    In an <img>, `prefers-color-scheme` follows the property `color-scheme` of the page, which the theme sets.

    Args:
        figure: a figure of Matplotlib. What is to follow the scheme is black (#000000).
        name: seeds the ids of the file.
        dark: other colours that follow the scheme, and what they are in dark mode.
    """
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue().replace("#000000", "currentColor")
    text = re.sub(r"(?<=data:image/png;base64,)[^\"]+", _smaller, text)
    # the rest halves the file: no metadata, fonts of the style, pixels to a hundredth
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r" font-family: [^;\"]*;?| transform=\"rotate\(-0 [^)]*\)\"", "", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=[\d-]\.\d\d)\d+(?!\w)", "", tag[0]), text)
    text = re.sub(r"(?<=<g) id=\"\w+\"|; stroke-linejoin: miter|; stroke-linecap: square", "", text)
    text = re.sub(r"\s+", " ", text).replace("> <", "><") + "\n"
    for number, colour in enumerate(dark):
        text = text.replace(colour, f"var(--c{number})")
    palettes = (
        "".join(f"--c{i}:{colour};" for i, colour in enumerate(each)) for each in (dark, dark.values())
    )
    return re.sub(r"(<svg[^>]*>)", rf"\1{STYLE % tuple(palettes)}", text, count=1)


def png(image: Image.Image) -> bytes:
    """Return an image of at most 256 colours as a PNG with a palette."""
    pixels = np.asarray(image.convert("RGBA"))
    colours, indices = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    small = Image.fromarray(indices.reshape(pixels.shape[:2]).astype(np.uint8))
    small.putpalette(colours[:, :3].tobytes())
    file = io.BytesIO()
    small.save(file, "png", optimize=True, transparency=colours[:, 3].tobytes())
    return file.getvalue()


def _smaller(match: re.Match[str]) -> str:
    image = Image.open(io.BytesIO(base64.b64decode(match.group())))
    return base64.b64encode(png(image)).decode()
