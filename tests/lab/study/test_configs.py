"""Every shipped study can be read, says how it is run, and has possible trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floater.encodings import catalogue
from floater.lab.settings import load
from floater.lab.study.grid import grid, merged, planned
from floater.lab.study.report import write_report
from floater.lab.study.results import Outcome, Results
from floater.lab.study.settings import ShortToLong, StudySettings

FOLDER = Path(__file__).parents[3] / "configs" / "study"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
TINY = (
    "multi30k",
    "multi30k_s2l",
    "news_s2l",
    "generated_copy",
    "generated_listops",
    "generated_reverse",
)


def read(name: str) -> StudySettings:
    return load(StudySettings, FOLDER / f"{name}.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_says_how_it_is_run(path: Path) -> None:
    settings = load(StudySettings, path)
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# floater study configs/study/{path.name}"
    assert settings.folder == f"runs/study/{path.stem}"


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS if path.stem not in TINY])
def test_its_trials_have_valid_settings(name: str) -> None:
    """Without the data: one trial that has not ends the study before any starts."""
    settings = read(name)
    trials = planned(replace(settings, seeds=settings.seeds[:1]), name).trials
    assert trials or settings.checkpoints


@pytest.mark.parametrize("name", TINY)
def test_its_trials_are_possible_and_have_a_report(name: str, tmp_path: Path) -> None:
    """Without the data, which are not here."""
    settings = read(name)
    there = str(FOLDER / f"{name}.yaml")
    files = {f"{part}_{side}": there for part in ("train", "valid") for side in ("source", "target")}
    common = (
        merged(settings.settings, {"data": files}) if settings.task == "translation" else settings.settings
    )
    tests = {key: test for key, test in settings.tests.items() if "source" not in test}
    asked = replace(
        settings, folder=str(tmp_path), settings=common, tests=tests, short_to_long=ShortToLong(), seeds=[1]
    )
    possible = grid(asked, name)
    assert possible.trials
    report = write_report(Results(asked, possible, [Outcome(each, "open") for each in possible.trials]), name)
    assert settings.title in report.read_text(encoding="utf-8")


@pytest.mark.parametrize("problem", ["reverse", "addition"])
def test_every_row_of_the_catalogue_is_run_or_left_out_with_a_reason(problem: str) -> None:
    settings = read(f"generated_{problem}")
    run = {kind(name, entry) for name, entry in settings.models.items()}
    assert not run & settings.excluded.keys()
    assert run | settings.excluded.keys() == catalogue().keys()


def kind(name: str, entry: dict[str, Any] | None) -> str:
    position = (entry or {}).get("position", name)
    return "compose" if isinstance(position, list) else position


@pytest.mark.parametrize("problem", ["copy", "reverse", "sort", "addition", "parity", "recall"])
def test_the_league_of_length_has_three_seeds_of_every_strong_baseline(problem: str) -> None:
    settings = read(f"generated_{problem}")
    seeds = {name: (entry or {}).get("seeds", settings.seeds) for name, entry in settings.models.items()}
    run = {kind(name, entry) for name, entry in settings.models.items() if len(seeds[name]) == 3}
    baselines = {
        "none",
        "sinusoidal",
        "learned",
        "rotary",
        "xpos",
        "alibi",
        "t5",
        "kerple",
        "fire",
        "shaw",
        "chang",
    }
    assert run >= baselines | {"floater", "floater_relative", "floater_rotary"}
    random = [entry for entry in settings.models.values() if "times" in str((entry or {}).get("settings"))]
    assert {entry["position"] for entry in random} == {"floater", "sinusoidal"}


def test_the_bins_of_the_paper_are_those_of_news() -> None:
    settings = read("news_s2l")
    assert (settings.short_to_long.cut, settings.edges) == (80, [80, 100, 120, 140])
    assert set(settings.short_to_long.skip.values()) == {1}
    assert read("floater_figure2").edges == settings.edges
