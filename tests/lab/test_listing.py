"""The catalogue's table and its page."""

import io
import re
import runpy
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from floater import PositionError, catalogue
from floater.encodings import StackSpec, options
from floater.encodings.card import Stack
from floater.errors import DataError
from floater.lab.cli import main
from floater.lab.cli.listing import PAGE, arguments, columns, entry, stacks, summary, table

DOCS = Path(__file__).parents[2] / "docs"
SPEC = StackSpec(dim=16, heads=2, layers=2, max_length=8)


@pytest.fixture
def site(monkeypatch):
    """The functions of the script that writes the page, which imports a neighbour."""
    monkeypatch.syspath_prepend(DOCS / "scripts")
    return runpy.run_path(str(DOCS / "scripts" / "catalogue.py"))


def test_the_page_is_what_the_code_says(site):
    assert (DOCS / "catalogue.md").read_text(encoding="utf-8") == site["page"](), "run `make docs`"


@pytest.mark.parametrize(("folder", "ending", "most"), [("", "svg", 32_000), ("small", "png", 2_000)])
def test_every_encoding_has_one_small_figure(folder, ending, most):
    sizes = {path.stem: path.stat().st_size for path in (DOCS / "catalogue" / folder).glob("*.*")}
    assert set(sizes) == set(catalogue())
    assert {path.suffix for path in (DOCS / "catalogue" / folder).glob("*.*")} == {f".{ending}"}
    assert max(sizes.values()) < most
    assert sum(sizes.values()) < 2_000_000


@pytest.mark.parametrize("name", ["seqpe", "sinusoidal", "window"])
def test_a_figure_is_drawn_the_same_again(site, name):
    figure, thumbnail = site["draw"](name)
    assert (figure, thumbnail) == site["draw"](name)


def test_a_figure_shows_the_values_in_colours_and_text_in_that_of_the_scheme(site):
    figure, thumbnail = site["draw"]("window")
    assert "prefers-color-scheme:dark" in figure
    assert "#000000" not in figure
    pixels = np.asarray(Image.open(io.BytesIO(thumbnail)).convert("RGBA"))
    masked = ~np.isfinite(site["pictures"]("window", site["DRAWN"])[1][0].numpy())
    assert ((pixels[..., 3] == 0) == masked).all()


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


OURS = {
    *("clock", "compose", "shaw_absolute"),
    *(f"floater_{kind}" for kind in ("cde", "grid", "relative", "rotary", "tree")),
}


@pytest.mark.parametrize("name", catalogue())
def test_every_card_says_in_which_stacks_its_paper_has_it(name):
    card = catalogue()[name].card
    assert set(card.stacks) <= set(get_args(Stack))
    assert all(card.stacks.values())
    assert (not card.stacks) == (name in OURS)
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
