"""Figures of the pages: nothing is cut, and the panels are not squeezed by what stands beside them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "scripts"))

import certificates
import far
import openings

DRAWN = {study.name: partial(far.draw, (study,)) for study in far.STUDIES}
DRAWN |= {
    each.__name__: each
    for each in (openings.results, openings.extend, openings.performance, openings.compare)
}
DRAWN["certificate"] = lambda columns: certificates.draw(*certificates.read("smollm2"), 4.1 * columns)


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_is_cut_and_no_panel_squeezed(name: str) -> None:
    """On a phone, where there is less room than in two columns."""
    figure: Figure = DRAWN[name](1)
    figure.draw_without_rendering()  # which lays out
    box, width = figure.get_tightbbox(), figure.get_figwidth()
    assert box.x0 > -0.02, "a text is cut on the left"
    assert box.x1 < width + 0.02, "a text is cut on the right"
    assert all(panel.get_position().width > 0.5 for panel in figure.axes)


def test_the_figure_of_results_has_the_names_of_its_tables() -> None:
    page = (openings.DOCS / "results.md").read_text(encoding="utf-8")
    left, right = openings.results(2).axes
    names = [label.get_text() for label in left.get_yticklabels()]
    names += right.get_legend_handles_labels()[1]
    assert len(names) == 15
    assert [name for name in names if f"\n| {name} | " not in page] == []


def test_the_figure_of_certificates_has_the_names_of_its_table() -> None:
    page = (certificates.FOLDER.parent / "certificate.md").read_text(encoding="utf-8").replace("`", "")
    (axes,) = DRAWN["certificate"](2).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert "self_extend, temperature=True" in names
    assert [name for name in names if f"\n| {name} | " not in page] == []


def test_a_line_that_others_cover_is_seen_around_them() -> None:
    """`none` and `none-logn` have nearly the same scores of sorting: the lower line is wider."""
    (panel,) = far.draw(tuple(study for study in far.STUDIES if study.name == "generated_sort_tuned"), 1).axes
    below, above, alone, _ = panel.get_lines()
    assert below.get_linewidth() > above.get_linewidth() == alone.get_linewidth()
    assert below.get_markersize() > above.get_markersize()
