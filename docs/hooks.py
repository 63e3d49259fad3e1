"""Hooks that MkDocs runs while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MATH = (
    '<link rel="stylesheet" href="{0}katex/katex.min.css" />'
    '<script defer src="{0}katex/katex.min.js"></script><script defer src="{0}math.js"></script></head>'
)


def on_page_content(html: str, page: Any = None, **_: Any) -> str:
    """Let images load when they scroll into view, and show the dark version of a figure in dark mode.

    The catalogue has an image for each encoding. The dark version of NAME.svg is NAME-dark.svg.

    >>> on_page_content('<img alt="" src="a.png" />')
    '<img loading="lazy" alt="" src="a.png" />'
    >>> from types import SimpleNamespace
    >>> page = SimpleNamespace(file=SimpleNamespace(src_uri="concepts.md"))
    >>> on_page_content('<img alt="" src="concepts/clock.svg" />', page).count("clock-dark.svg#only-dark")
    1
    """
    html = re.sub(r"<img(?! loading)", '<img loading="lazy"', html)
    return html if page is None else re.sub(r'<img[^>]* src="([^":]+)\.svg"[^>]*>', _pair(page), html)


def _pair(page: Any) -> Any:
    """Return a function that puts the dark version of a figure beside it, if there is one."""
    folder = (HERE / page.file.src_uri).parent

    def pair(match: re.Match[str]) -> str:
        image, name = match.group(), match[1]
        if not (folder / f"{name}-dark.svg").is_file():
            return image
        light, dark = (
            image.replace(f"{name}.svg", f"{name}{kind}")
            for kind in (".svg#only-light", "-dark.svg#only-dark")
        )
        return light + dark

    return pair


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Load KaTeX on a page that has equations.

    >>> from types import SimpleNamespace
    >>> page = SimpleNamespace(url="design/collocation.html")
    >>> '<script defer src="../assets/math.js">' in on_post_page('<head></head><p class="arithmatex">', page)
    True
    """
    if 'class="arithmatex"' not in output:
        return output
    assets = "../" * page.url.count("/") + "assets/"
    return output.replace("</head>", MATH.format(assets), 1)
