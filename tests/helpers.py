"""Helpers of tests in several folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import TrainerCallback

from floater.lab.settings.keys import keys_of
from floater.lab.tasks import Task
from floater.lab.training import average
from floater.lab.training.run_trainer import RunTrainer


def write_run_config(path: Path, config: Mapping[str, Any], **parts: Any) -> Path:
    """Write the configuration of a small run, whose directory has the name of the file.

    Args:
        path: of the YAML file.
        config: the default, without the run directory.
        **parts: changed keys of a section, as in training={"seed": 2}, or another value of a key at the top.

    Returns:
        The path. Without eval_steps the run is validated wherever it is saved.
    """
    tree: dict[str, Any] = {"run": str(path.with_suffix(""))} | dict(config)
    for section, changes in parts.items():
        old = tree.get(section)
        both = isinstance(old, dict) and isinstance(changes, dict)
        tree[section] = old | changes if both else changes
    training = tree["training"]
    if "eval_strategy" not in training:
        tree["training"] = {"eval_steps": training["save_steps"]} | training
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


class At(TrainerCallback):
    """Do something at the end of a step, before its scores and checkpoint."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.step, self.action = step, action

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.action()


def train_with(task: Task, settings: Any, callback: TrainerCallback, **options: Any) -> Path:
    """Train a run with one more callback, and options of `Task.train`, and return its directory."""
    train = RunTrainer.train

    def changed(self: RunTrainer, *args: Any, **kwargs: Any) -> Any:
        self.add_callback(callback)
        return train(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunTrainer, "train", changed)
        return task.train(settings, **options)


def kill(task: Task, settings: Any, step: int) -> Path:
    """Train a run until a step that is no checkpoint's, as one that is killed there; return its directory."""

    def stop() -> None:
        raise RuntimeError("killed")

    run = Path(settings.run)
    with pytest.raises(RuntimeError, match="killed"):
        train_with(task, settings, At(step, stop))
    assert not (run / "model").exists()
    assert not (run / f"checkpoint-{step}").exists(), "the test needs a step that is lost"
    return run


def train_killed(task: Task, settings: Any, step: int = 6) -> Path:
    """Train a run that is killed after a step and resumed to its end; return its directory."""
    kill(task, settings, step)
    return task.train(settings)


def equal_runs(one: Path, other: Path) -> bool:
    """Return whether two runs have the same final weights, bit for bit, and the same result."""
    ours, theirs = (average([run / "model"]) for run in (one, other))
    results = [json.loads((run / "result.json").read_text()) | {"minutes": 0} for run in (one, other)]
    same = ours.keys() == theirs.keys() and all(bool((ours[name] == theirs[name]).all()) for name in ours)
    return same and results[0] == results[1]


def check_every_setting_acts(
    default: Any,
    changes: Mapping[str, Mapping[str, Any]],
    observe: Callable[[Any], Any],
    *,
    stated: Collection[str] = (),
) -> None:
    """Check that every setting of a dataclass changes what is observed of it.

    Args:
        default: an instance of the dataclass.
        changes: by the name of each field what to change, this field and others that it needs.
        observe: of an instance; what it returns is compared.
        stated: fields that only state what others decide; a contradiction must be refused elsewhere.
    """
    names = {each.name for each in fields(default)} - set(stated)
    assert changes.keys() == names, f"say how these act: {sorted(names ^ changes.keys())}"
    for name, change in changes.items():
        needed = {other: value for other, value in change.items() if other != name}
        before, after = replace(default, **needed), replace(default, **change)
        assert observe(before) != observe(after), f"{name} changes nothing"


def undocumented(cls: type) -> list[str]:
    """Name the dotted keys of settings that no ``Attributes:`` section explains."""
    return [name for name, key in keys_of(cls).items() if not key.meaning]
