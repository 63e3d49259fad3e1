"""Reduce the size of a figure's SVG without a visible change."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from zlib import crc32

_NUMBER = re.compile(r"-?\d+\.\d+")
_COORDINATES = re.compile(r' (?:d|x|y|width|height|transform|viewBox|points)="[^"]*"')
_IMAGE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=\s]+)")
_MATRIX = re.compile(r"matrix\([^)]*\)")
_DIGITS, _FINE = 1, 4


def slim(svg: str) -> str:
    """Return an SVG of matplotlib with fewer bytes.

    Coordinates keep one decimal, in points; fonts are those of the page; images become lossless WebP.

    Args:
        svg: an element `svg`.

    Example:
        >>> slim('<svg> <g> <path d="M 0.123456 1.999999 L 2 3" style="fill: none; a: b"/> </g> </svg>')
        '<svg><path d="M0.1 2L2 3" style="fill:none;a:b"/></svg>'
    """
    svg = _IMAGE.sub(lambda match: _smaller(match[1]), svg)
    svg = _COORDINATES.sub(lambda match: _rounded(match[0]), svg)
    svg = re.sub(r' d="([^"]*)"', lambda match: f' d="{_path(match[1])}"', svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", svg)
    svg = svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    svg = re.sub(r' style="[^"]*"', lambda match: _style(match[0]), svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r'<path d="[^"]*" style="fill:none"/>', "", svg)  # invisible
    before = ""
    while before != svg:  # empty groups, from the inside out
        before, svg = svg, re.sub(r"<g>((?:(?!</?g[ >]).)*)</g>", r"\1", svg, flags=re.DOTALL)
    return _with_classes(svg)


def _with_classes(svg: str) -> str:
    """Write a style that several elements share once, as a class that is named by its style."""
    counts = Counter(re.findall(r' style="([^"]*)"', svg))
    names = {style: f"s{crc32(style.encode()):x}" for style, count in counts.items() if count > 1}
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())

    def shared(match: re.Match[str]) -> str:
        return f' class="{names[match[1]]}"' if match[1] in names else match[0]

    svg = re.sub(r' style="([^"]*)"', shared, svg)
    return svg.replace("</style>", f"{rules}</style>", 1)


def _rounded(text: str) -> str:
    """Return an attribute with fewer digits; a matrix keeps more, as it scales whole images."""
    digits = _FINE if _MATRIX.search(text) else _DIGITS
    return _NUMBER.sub(lambda match: f"{round(float(match[0]), digits) + 0.0:.7g}", text)


def _style(declarations: str) -> str:
    return re.sub(r"([:;]) +", r"\1", declarations).replace(';"', '"')


def _path(commands: str) -> str:
    return re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(commands.split()))


def _smaller(encoded: str) -> str:
    """Return the data URI of a PNG image as lossless WebP, where that is smaller."""
    from PIL import Image

    raw = base64.b64decode(encoded)
    file = io.BytesIO()
    Image.open(io.BytesIO(raw)).save(file, format="WEBP", lossless=True, quality=100, method=6)
    kind, smallest = min(("png", raw), ("webp", file.getvalue()), key=lambda pair: len(pair[1]))
    return f"data:image/{kind};base64,{base64.b64encode(smallest).decode()}"
