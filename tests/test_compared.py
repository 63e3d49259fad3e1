"""The page that says what each encoding was compared with."""

import re
from pathlib import Path

import pytest

from floater import catalogue
from floater.transformer import RECIPES

TEXT = (Path(__file__).parent.parent / "docs" / "compared.md").read_text(encoding="utf-8")
PAGE = TEXT.partition("## Training")[0]  # losses follow
RECIPE_ROWS, ROWS, _ = (
    dict(re.findall(r"^\| (\w+) \| ([^|]+) \|", part, re.MULTILINE))
    for part in re.split("^## (?:Encodings|Extensions)", PAGE, flags=re.MULTILINE)
)


def test_every_encoding_and_every_recipe_has_a_row():
    assert set(ROWS) - {"encoding"} == set(catalogue())
    assert set(RECIPE_ROWS) - {"recipe"} == set(RECIPES)


@pytest.mark.parametrize("row", re.findall(r"^\| \w+ \|.*$", PAGE, re.MULTILINE))
def test_a_row_says_never_or_how_large_the_difference_is(row):
    _, _, code, what, most, _ = (cell.strip() for cell in row.split("|"))
    if code.startswith(("never", "exists only in this library")):
        assert not what
        assert not most
    else:
        assert what
        assert most


@pytest.mark.parametrize(("package", "said"), re.findall(r"([a-z][\w-]+) (\d+\.\d+\.\d+)", PAGE))
def test_the_versions_are_those_that_the_tests_run(package, said):
    pins = (Path(__file__).parent.parent / "constraints.txt").read_text(encoding="utf-8")
    assert f"{package}=={said}" in pins.splitlines()
