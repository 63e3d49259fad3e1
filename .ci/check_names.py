"""Refuse names that tell how a value came about instead of what it is: `found`, `given`, `own`, `of_query`.

    python .ci/check_names.py [FILE OR FOLDER ...]    (default: src)

Modules, classes, functions, arguments, variables and attributes are checked where they are defined, so names
of other libraries do not count.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

BANNED = {"found", "given", "own", "known", "taken", "made", "place", "places"}
ADVICE = "say what the value is, as in scores, checkpoint, config, distances, expected, defaults"


def is_banned(name: str) -> bool:
    """Return whether a name is banned, also with underscores before it; `of_` is banned as a prefix."""
    bare = name.lstrip("_").lower()
    return bare in BANNED or bare.startswith("of_")


def definitions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every class, function, argument, variable, attribute and alias."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)):
                yield node.lineno, name


def main(paths: list[str]) -> int:
    """Print a line for each banned name in the files, and return 1 if there is any, else 0."""
    roots = [Path(path) for path in paths or ["src"]]
    files = sorted(file for root in roots for file in ([root] if root.is_file() else root.rglob("*.py")))
    messages = []
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        names = {(1, file.stem), *definitions(tree)}
        banned = sorted((line, name) for line, name in names if is_banned(name))
        messages += [f"{file}:{line}: rename {name!r}: {ADVICE}" for line, name in banned]
    print(*messages, sep="\n", end="\n" * bool(messages))
    return int(bool(messages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
