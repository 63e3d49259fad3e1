"""The page "At full size": its needs are those of the configurations, and its commands can be given."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from floater.lab.datasets.catalogue import dataset
from floater.lab.settings import load, read
from floater.lab.study.settings import StudySettings
from floater.lab.tasks.registry import from_config

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "scripts"))

import fullsize  # noqa: E402

PAGE = fullsize.PAGE.read_text(encoding="utf-8")
COMMANDS = re.findall(r"^floater .*$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("table", fullsize.TABLES, ids=lambda table: table.study)
def test_a_row_is_the_arithmetic_of_its_configuration(table: fullsize.Table) -> None:
    assert fullsize.markdown([fullsize.row(table)]).splitlines()[-1] in PAGE.splitlines(), "run `make docs`"


def test_every_study_of_the_papers_is_on_the_page() -> None:
    papers = {
        path.stem for path in fullsize.STUDIES.glob("*.yaml") if path.stem.startswith(("floater_", "tupe_"))
    }
    small = {name for name in papers if name.endswith("_small")}
    assert papers - small == {table.study for table in fullsize.TABLES}
    for table in fullsize.TABLES:
        assert f"floater study configs/study/{table.study}.yaml" in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_can_be_given(command: str) -> None:
    _, name, target, *rest = shlex.split(command)
    if name == "data":
        assert dataset(target).name == target
        assert rest == ["--to", "data"]
    elif name == "study":
        load(StudySettings, ROOT / target, rest)
    else:
        assert name == "train"
        from_config(read(ROOT / target), target, rest)


def test_hours_are_those_of_the_operations() -> None:
    """BERT-Base for 1,000,000 steps of 131,072 tokens: 6 x 112 M x 1.3e11 operations, 8 per 0.11 s."""
    trial = fullsize.planned(fullsize.read("tupe_table2"), "here").trials[0]
    assert fullsize.work(trial, None) == (8e6, 16384)
    assert fullsize.hours(trial, 10**8, None) == pytest.approx(6 * 1e8 * 1e6 * 131072 / 1e14 / 3600)
    assert fullsize.hours(trial, 1, None) == pytest.approx(8e6 * fullsize.LEAST / 3600)
