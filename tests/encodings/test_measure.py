"""The survey's table, measured from the code."""

import pytest

from floater import catalogue
from floater.encodings import StackSpec, options
from floater.encodings.measure import count, measure

CELLS = ("injection", "learnable", "recurring", "unbound")
SIZES = [(8, 2, 3, 16), (16, 4, 2, 12), (24, 3, 1, 40)]


def survey_count(row, name, sizes):
    """A formula of the survey at some sizes, its other letters taken from the options of the model."""
    chosen = options(name)
    letters = dict(zip(("d", "h", "l", "t_max"), sizes, strict=True)) | {
        "n": 37,  # words
        "K": chosen.get("sines"),
        "t1": chosen.get("segment"),
        "d1": sizes[0] - sizes[0] // 2,
        "d_r": chosen.get("width"),
        "D_max": chosen.get("depth", sizes[3]),
        "more": None,  # "0 or more" leaves it open
    }
    if letters["t1"] is not None and row.parameters == "(d-d1)*t_max/t1 + d1*t1":
        letters["t_max"] = -(-letters["t_max"] // letters["t1"]) * letters["t1"]  # whole segments
    return eval(row.parameters.replace("^", "**"), {"__builtins__": {}}, letters)


@pytest.mark.parametrize("name", catalogue())
def test_measured_cells_are_those_of_the_survey_but_for_the_differences_that_the_card_explains(name):
    card, actual = catalogue()[name].card, measure(name)
    assert actual.relative == ((card.point in ("relative", "none")) != ("shift" in card.exceptions))
    if card.survey is None:
        return
    other = {cell for cell in CELLS if getattr(actual, cell) != getattr(card.survey, cell)}
    for sizes in SIZES:
        spec = dict(zip(("dim", "heads", "layers", "max_length"), sizes, strict=True))
        if sum(count(name, StackSpec(**spec)).values()) != survey_count(card.survey, name, sizes):
            other.add("parameters")
    assert set(card.survey.differs) == other
