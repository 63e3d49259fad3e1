"""The tables of "How far does it go?" are those of the scores, and all scores those of the examples."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import far

EXAMPLES = sorted(far.HERE.glob("*/*.npz"))


@pytest.mark.parametrize("name", far.TABLES)
def test_a_table_is_that_of_the_scores(name: str) -> None:
    assert far.table(far.TABLES[name]) in far.PAGE.read_text(encoding="utf-8"), "run `make docs`"


@pytest.mark.parametrize("examples", EXAMPLES, ids=lambda path: path.stem)
def test_scores_follow_from_the_stored_examples(examples: Path) -> None:
    assert far.check(examples.with_suffix(".csv")) == []


def test_a_score_that_does_not_follow_from_the_examples_is_named(tmp_path: Path) -> None:
    arrays = {"none/1/lengths/lengths": np.array([3, 90]), "none/1/lengths/exact": np.array([[1, 1], [0, 1]])}
    np.savez(tmp_path / "study.npz", **arrays)
    line = {"model": "none", "seed": 1, "test": "lengths", "metric": "exact", "low": 0, "high": 80}
    for score, wrong in ((100.0, 0), (50.0, 1)):
        with (tmp_path / "study.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*line, "score"])
            writer.writeheader()
            writer.writerow({**line, "score": score})
        assert len(far.check(tmp_path / "study.csv")) == wrong
