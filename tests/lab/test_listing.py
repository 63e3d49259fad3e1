"""The catalogue's table and its page."""

import re
import runpy
from pathlib import Path
from typing import get_args

import pytest

from floater import PositionError, catalogue
from floater.encodings import StackSpec, options
from floater.encodings.card import Stack
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.cli.listing import PAGE, arguments, columns, entry, stacks, summary, table

DOCS = Path(__file__).parents[2] / "docs"
SPEC = StackSpec(dim=16, heads=2, layers=2, max_length=8)


def test_the_page_is_what_the_code_says():
    page = runpy.run_path(str(DOCS / "catalogue.py"))["page"]
    assert (DOCS / "catalogue.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_encoding_has_one_small_figure():
    sizes = {path.stem: path.stat().st_size for path in (DOCS / "catalogue").iterdir()}
    assert set(sizes) == set(catalogue())
    assert max(sizes.values()) < 25_000
    assert sum(sizes.values()) < 1_500_000


@pytest.mark.parametrize("name", catalogue())
def test_every_model_has_a_sentence_an_equation_and_explains_its_options(name):
    assert summary(name).endswith((".", ".)"))
    assert len(summary(name)) < 200
    assert set(dict(arguments(name))) >= set(options(name))
    for option in options(name):
        text = dict(arguments(name))[option]
        assert len(text) > 12, f"{option} is not explained"
        assert not re.search(r"see `\w+`", text), f"{option} is explained elsewhere: {text}"
    said = " ".join(entry(name, SPEC).split())
    assert " ".join(catalogue()[name].card.equation.split()) in said
    assert catalogue()[name].card.link in said


OWN = {
    *("clock", "compose", "shaw_absolute"),
    *(f"floater_{kind}" for kind in ("grid", "relative", "rotary", "tree")),
}


@pytest.mark.parametrize("name", catalogue())
def test_every_card_says_in_which_stacks_its_paper_has_it(name):
    card = catalogue()[name].card
    assert set(card.stacks) <= set(get_args(Stack))
    assert all(card.stacks.values())
    assert (not card.stacks) == (name in OWN)
    _, line = re.search(r"\n  stacks( +)((?:.*\n +)*.*)\n  recipe", entry(name, SPEC)).groups()
    assert " ".join(line.split()) == stacks(name)


def test_stacks_beyond_the_paper_are_named():
    assert stacks("tener") == "encoder (named entities); beyond the paper: causal, decoder"
    assert stacks("disan").endswith("beyond the paper: causal, decoder")  # reads both directions in its paper
    assert stacks("ldpe") == "decoder (summaries); beyond the paper: encoder, causal"
    assert stacks("tree").endswith("; not here: decoder")
    assert stacks("pnat").endswith("beyond the paper: encoder")  # no causal stack, by its exceptions
    assert stacks("floater_relative") == "encoder, causal, decoder; in no paper"


def test_the_page_has_the_table_that_the_command_prints(capsys):
    assert main(["models", "--format", "markdown"]) == 0
    printed = capsys.readouterr().out
    page = re.sub(
        r"(?m)^\| \[(\w+)\]\(#\1\) \|", r"| \1 |", (DOCS / "catalogue.md").read_text(encoding="utf-8")
    )
    assert printed in page
    lines = printed.splitlines()
    assert len(lines) == len(catalogue()) + 2
    assert {line.count("|") for line in lines} == {len(PAGE) + 1}


def test_what_cannot_be_listed_is_named():
    with pytest.raises(PositionError, match="cape: dim is 7; "):
        columns("cape", StackSpec(dim=7, heads=1, layers=1, max_length=8))
    with pytest.raises(PositionError, match="did you mean 'tener'"):
        entry("tenor", SPEC)
    with pytest.raises(DataError, match="no column 'yaer'; did you mean 'year'"):
        table([columns("none", SPEC)], ["yaer"])
