"""The page of promises: every promise names tests that exist, and no promise is without one."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from floater.testing import CHECKS

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "promises.md"
ROWS = [
    line
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


@cache
def functions(file: Path) -> frozenset[str]:
    """Return the names of the functions of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split(" | ")[0].strip("| "))
def test_a_promise_names_tests_that_exist(row: str) -> None:
    promise, how_far, held = row.strip("| ").split(" | ")
    names = re.findall(r"`([\w/]+\.py)::(test_\w+)(\[\w+\]|)`", held)
    assert promise
    assert how_far
    assert names
    assert held == ", ".join(f"`{file}::{name}{check}`" for file, name, check in names)
    assert {check.strip("[]") for _, _, check in names if check} <= CHECKS.keys()
    missing = [f"{file}::{name}" for file, name, _ in names if name not in functions(TESTS / file)]
    assert missing == []
