"""Figures of the pages: nothing is cut, and the panels are not squeezed by what stands beside them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import far
import openings

DRAWN = {study.name: partial(far.draw, (study,)) for study in far.STUDIES}
DRAWN |= {
    each.__name__: each
    for each in (openings.results, openings.extend, openings.performance, openings.compare)
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_is_cut_and_no_panel_squeezed(name: str) -> None:
    """On a phone, where there is less room than in two columns."""
    figure: Figure = DRAWN[name](1)
    figure.draw_without_rendering()  # which lays out
    box, width = figure.get_tightbbox(), figure.get_figwidth()
    assert box.x0 > -0.02, "a text is cut on the left"
    assert box.x1 < width + 0.02, "a text is cut on the right"
    assert all(panel.get_position().width > 0.5 for panel in figure.axes)


def test_a_line_that_others_cover_is_seen_around_them() -> None:
    """`none` and `none-logn` have nearly the same scores of sorting: the lower line is wider."""
    (panel,) = far.draw(tuple(study for study in far.STUDIES if study.name == "generated_sort_tuned"), 1).axes
    below, above, alone, _ = panel.get_lines()
    assert below.get_linewidth() > above.get_linewidth() == alone.get_linewidth()
    assert below.get_markersize() > above.get_markersize()
