"""Hooks that MkDocs runs while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

MATH = (
    '<link rel="stylesheet" href="{0}katex/katex.min.css" />'
    '<script defer src="{0}katex/katex.min.js"></script><script defer src="{0}math.js"></script></head>'
)


def on_page_content(html: str, **_: Any) -> str:
    """Let images load when they scroll into view, as in the catalogue, and break the long names of tests.

    >>> on_page_content('<img alt="" src="a.png" />')
    '<img loading="lazy" alt="" src="a.png" />'
    >>> on_page_content("<code>a/test_b.py::test_c</code>")
    '<code>a/<wbr>test_<wbr>b.py::<wbr>test_<wbr>c</code>'
    """
    html = re.sub(r"<img(?! loading)", '<img loading="lazy"', html)
    return re.sub(r"(?<=<code>)[^<]+::[^<]+", lambda name: re.sub("::|/|_", r"\g<0><wbr>", name[0]), html)


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
