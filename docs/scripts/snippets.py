"""Run the snippets of the pages and write the output that the pages show: `make docs`.

In a page, blocks marked `python` run one after another in one namespace, blocks marked `sh` hold `floater`
commands, and a block marked `text title="Output"` after one of them is what that one prints. Blocks marked
`console` do not run: they are for other machines, or take hours. What a `sh` block prints may be left out.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from floater.lab.cli import main as floater

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^```(?P<kind>python|sh|text title=\"Output\")\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
OUTPUT = 'text title="Output"'


class SnippetError(Exception):
    """A snippet does not run, or its page does not show what it prints."""


def pages() -> list[Path]:
    """Return the pages that have snippets: the README and those of the site."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in files if BLOCK.search(page.read_text(encoding="utf-8"))]


def run(page: Path) -> str:
    """Run the snippets of a page in the working directory.

    Args:
        page: a Markdown file.

    Returns:
        The page with the output of each snippet.

    Raises:
        SnippetError: if a snippet fails, or prints something that has no block to show it.
    """
    text = page.read_text(encoding="utf-8")
    # the blocks of a page build on each other; each of the README stands alone
    namespace: dict[str, Any] = {"__name__": "__main__"}
    done, printed, end = [], "", 0
    blocks = list(BLOCK.finditer(text))
    for match, following in zip_longest(blocks, blocks[1:]):
        done.append(text[end : match.start()])
        end = match.end()
        if match["kind"] == OUTPUT:
            done.append(f"```{OUTPUT}\n{printed}```")
            printed = ""
            continue
        if printed:
            raise SnippetError(f"{page.name}: no block shows the output {printed!r}")
        line = text.count("\n", 0, match.start()) + 2
        printed = _execute(match["kind"], match["text"], namespace, page, line)
        if match["kind"] == "sh" and (following is None or following["kind"] != OUTPUT):
            printed = ""  # scores and minutes of a training
        if page.name == "README.md":
            namespace, printed = {"__name__": "__main__"}, ""
        done.append(match.group())
    if printed:
        raise SnippetError(f"{page.name}: no block shows the output {printed!r}")
    return "".join([*done, text[end:]])


def _execute(kind: str, code: str, namespace: dict[str, Any], page: Path, line: int) -> str:
    """Return what a snippet prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if kind == "python":
            # tracebacks name the page and its line
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        else:
            for command in _commands(code):
                if command[0] == "cd":
                    os.chdir(command[1])
                elif floater(command[1:]) != 0:
                    raise SnippetError(f"{page.name}, line {line}: {shlex.join(command)} failed")
    # the Trainer prints dicts of times and losses, which differ from machine to machine
    return re.sub(r"^\s*\{'.*\}\n|[ \t]+$", "", printed.getvalue(), flags=re.MULTILINE)


def _commands(code: str) -> Iterator[list[str]]:
    """Yield the commands of a block, without comments.

    >>> list(_commands("cd examples  # here\\nfloater train a.yaml \\\\\\n  run=b\\n"))
    [['cd', 'examples'], ['floater', 'train', 'a.yaml', 'run=b']]
    """
    for line in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            if words[0] not in ("cd", "floater"):
                raise SnippetError(f"a block marked sh has floater commands and cd, not {words[0]}")
            yield words


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """Enter an empty directory that has copies of `configs` and `examples`."""
    before, width = Path.cwd(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"  # to which commands wrap what they print
    with tempfile.TemporaryDirectory() as folder:
        for name in ("configs", "examples"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)


def main() -> None:
    """Write the outputs of the named pages, or of all."""
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        print(page.relative_to(ROOT), flush=True)  # progress, in a file too
        with workplace():
            text = run(page)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
