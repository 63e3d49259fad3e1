"""Results that are made up, of a study that never ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from floater.lab.settings import make
from floater.lab.study.grid import Grid
from floater.lab.study.results import Outcome, Results
from floater.lab.study.settings import StudySettings
from floater.lab.study.variants import Trial, Variant
from floater.lab.tasks import task
from floater.lab.tasks.measurement import Array, Measurement

SETTINGS = SimpleNamespace(data=SimpleNamespace(source="en"))
LENGTHS = np.repeat([5, 20, 40, 100], 100)


def build_study(
    variants: list[str],
    seeds: list[int] | dict[str, list[int]],
    right: Callable[[str, int], Array],
    finished: Callable[[str, int], bool] = lambda variant, seed: True,
    lengths: Callable[[str], Array] = lambda variant: LENGTHS,
    starts: Mapping[str, str] = MappingProxyType({}),
    comparisons: Sequence[Sequence[str]] = (),
) -> Results:
    """A study of some variants: which answers each trial has right."""
    tree = {"folder": "study", "models": dict.fromkeys(variants), "bins": [10, 30, 50]}
    settings_tree = {"tests": {"lengths": {}}, "comparisons": [list(pair) for pair in comparisons]}
    settings = make(StudySettings, tree | settings_tree, "made up")
    there = [
        Variant(name, name, name, {}, seeds[name] if isinstance(seeds, dict) else seeds, starts.get(name))
        for name in variants
    ]
    trials = [Trial(variant, seed, SETTINGS, Path("study")) for variant in there for seed in variant.seeds]
    outcomes = []
    for trial in trials:
        name, of = trial.variant.name, lengths(trial.variant.name)
        if finished(name, trial.seed):
            answers = np.stack([right(name, trial.seed), np.ones(len(of))], axis=1).astype(float)
            measured = {"lengths": Measurement(of, {"exact": answers})}
            outcomes.append(Outcome(trial, "finished", measured=measured))
        else:
            outcomes.append(Outcome(trial, "failed", error="boom"))
    return Results(settings, Grid(Path("study"), there, trials, {"lengths": {}}), outcomes)


def asked(actual: Results, name: str, trees: Mapping[str, Mapping[str, Any]]) -> Results:
    """The results of variants of a task, with these settings."""
    settings = {each: make(task(name).Settings, {"run": each} | tree, each) for each, tree in trees.items()}
    outcomes = [
        replace(o, trial=replace(o.trial, settings=settings[o.trial.variant.name])) for o in actual.outcomes
    ]
    grid = replace(actual.grid, trials=[outcome.trial for outcome in outcomes])
    return replace(actual, settings=replace(actual.settings, task=name), grid=grid, outcomes=outcomes)
