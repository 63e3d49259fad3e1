"""Validation of a study's configuration."""

from pathlib import Path
from typing import Any

import pytest

from floater.lab.settings import SettingsError
from floater.lab.study.settings import StudySettings, bounds
from helpers import undocumented

from .small import settings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seeds": [1, 2, 1]}, "seeds has 1 twice"),
        ({"seeds": []}, "at least one seed"),
        ({"models": {}}, "give models to train, or checkpoints"),
        ({"models": {"a/b": {"position": "none"}}}, "'a/b'"),
        ({"bins": [20, 10]}, r"bins are \[20, 10\]"),
        ({"level": 1.5}, "level is 1.5"),
        ({"slurm": {"timeout_min": 3}}, "slurm is {'timeout_min': 3}, which only launcher 'slurm' reads"),
        ({"launcher": "slurm", "budget": {"gpus": 0.5}}, "budget.gpus is 0.5, which only launcher 'local'"),
        ({"task": "tagging"}, "short_to_long cuts translation data"),
        ({"tests": {"lengths": {}}}, "'lengths' is the test set of short_to_long"),
        ({"tests": {"validation": {}}}, "'validation' names the runs' own validation"),
        ({"short_to_long": {"builtin": 9, "cut": 15}}, "short_to_long: the built-in corpus is cut at 80"),
        ({"short_to_long": {"builtin": 9, "valid": 0.5}}, "leave out valid"),
        ({"short_to_long": {"builtin": 9, "unique": False}}, "leave out unique"),
        (
            {"short_to_long": {"builtin": 9, "test_source": ["a"], "test_target": ["b"]}},
            "test_source needs source or dataset",
        ),
        ({"short_to_long": {"test_source": ["a"], "test_target": ["b"]}}, "test_source needs source or"),
        ({"short_to_long": {"dataset_config": "de-en"}}, "dataset_config needs dataset"),
        (
            {"short_to_long": {"source": ["a"], "target": ["b"], "builtin_test": 9}},
            "builtin_test needs builtin",
        ),
        (
            {"short_to_long": {"source": ["a"], "target": ["b"], "skip": {"a": -1}}},
            "skip of a is -1; it must be at least 0",
        ),
        ({"short_to_long": {"source": ["a"]}}, "source and target must have as many files"),
        ({"short_to_long": {"source": ["a"], "target": ["b"], "skip": {"c": 1}}}, "skip names c"),
        ({"short_to_long": {"source": ["a"], "target": ["b"], "token": "("}}, "not a regular expression"),
        ({"short_to_long": {"cut": 15}}, "cut needs source, dataset or builtin"),
        ({"short_to_long": {"unique": False}}, "unique needs source, dataset or builtin"),
        (
            {"short_to_long": {"source": ["a"], "target": ["b"], "cut": 15}},
            r"bins are \[80, 100, 120, 140\] by default, without the cut of short_to_long at 15",
        ),
        ({"comparisons": [["a", "b"], ["b", "c"], ["a", "b"]]}, r"comparisons has \['a', 'b'\] twice"),
        ({"budget": {"cores": 2, "threads": 4}}, "threads is 4, more than the 2 cores"),
        ({"comparisons": [["none", "none"]]}, "it must be a list of pairs of different variants"),
        ({"budget": {"memory": 1, "trial_memory": 2}}, "trial_memory is 2"),
        ({"budget": {"trial_memory": 0}}, "trial_memory is 0"),
        ({"budget": {"gpus": 2}}, "gpus is 2; .* give budget.processes=2 for a trial on several"),
        ({"budget": {"gpus": 0.5, "processes": 2}}, "gpus is 0.5; each of 2 processes needs a whole one"),
        (
            {"budget": {"cores": 3, "threads": 2, "processes": 2}},
            "threads is 2 x 2 processes, more than the 3",
        ),
        ({"launcher": "cluster"}, "launcher"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(SettingsError, match=named) as refused:
        settings(tmp_path, **changes)
    assert "\n" not in str(refused.value)


def test_every_key_says_what_it_means() -> None:
    assert undocumented(StudySettings) == []


def test_the_papers_bins_are_those_of_short_to_long(tmp_path: Path) -> None:
    assert bounds(settings(tmp_path).edges) == [(0, 80), (80, 100), (100, 120), (120, 140), (140, None)]
    assert settings(tmp_path, bins=[90]).edges == [90]
    assert settings(tmp_path, short_to_long={}).edges == []
