"""The tables of "How far does it go?" are those of the scores, and all scores those of the examples."""

import csv
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "scripts"))

import far
import pages
import protocol

from floater.lab.settings import load
from floater.lab.study.grid import planned
from floater.lab.study.settings import StudySettings

EXAMPLES = sorted(far.DOCS.glob("*/*.npz"))


@pytest.mark.parametrize("name", far.TABLES)
def test_a_table_is_that_of_the_scores(name: str) -> None:
    assert far.table(far.TABLES[name]) in far.PAGE.read_text(encoding="utf-8"), "run `make docs`"


@pytest.mark.parametrize("examples", EXAMPLES, ids=lambda path: path.stem)
def test_scores_follow_from_the_stored_examples(examples: Path) -> None:
    assert pages.check(examples.with_suffix(".csv")) == []


@pytest.mark.parametrize("name", [study.name for study in far.STUDIES if study.name != "demo"])
def test_the_commands_of_the_provenance_give_the_rows_of_a_study(name: str) -> None:
    """Each variant and seed of the stored scores is a trial that a command plans."""
    text = far.PAGE.read_text(encoding="utf-8").split("## Provenance")[1]
    config, trials = f"configs/study/{name}.yaml", set()
    for command in re.findall(rf"`floater study {config}([^`]*)`", text):
        settings = load(StudySettings, far.DOCS.parent / config, shlex.split(command))
        trials |= {(trial.variant.name, str(trial.seed)) for trial in planned(settings, config).trials}
    rows = {(row["model"], row["seed"]) for row in far.read(far.SCORES / f"{name}.csv")}
    assert rows - trials == set()


def test_a_table_or_number_that_does_not_follow_from_the_scores_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a p value of a registered test."""
    assert pages.check_pages() == []
    page = tmp_path / "protocol.md"
    text = protocol.PAGE.read_text(encoding="utf-8")
    page.write_text(text.replace("| 11.6 ± 4.8 | 0.029 |", "| 11.6 ± 4.8 | 0.092 |"), encoding="utf-8")
    monkeypatch.setattr(protocol, "PAGE", page)
    assert pages.check_pages() == ["protocol.md: table 'tests' differs"]


def test_a_score_that_does_not_follow_from_the_examples_is_named(tmp_path: Path) -> None:
    arrays = {"none/1/lengths/lengths": np.array([3, 90]), "none/1/lengths/exact": np.array([[1, 1], [0, 1]])}
    np.savez(tmp_path / "study.npz", **arrays)
    line = {"model": "none", "seed": 1, "test": "lengths", "metric": "exact", "low": 0, "high": 80}
    for score, wrong in ((100.0, 0), (50.0, 1)):
        with (tmp_path / "study.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*line, "score"])
            writer.writeheader()
            writer.writerow({**line, "score": score})
        assert len(pages.check(tmp_path / "study.csv")) == wrong
