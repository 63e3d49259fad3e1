"""What tests of several folders share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from floater.tasks import Task
from floater.training import average
from floater.training.run_trainer import RunTrainer


class _Kill(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def train_killed(task: Task, settings: Any, monkeypatch: pytest.MonkeyPatch, step: int = 6) -> Path:
    """Train a run, kill it after a step that is no checkpoint's, and resume it to its end.

    Args:
        task: of the run.
        settings: of the run; their directory is new.
        monkeypatch: of the test.
        step: after which it is killed.

    Returns:
        The run directory.
    """
    train = RunTrainer.train

    def killed(self: RunTrainer, *args: Any, **kwargs: Any) -> Any:
        self.add_callback(_Kill(step))
        return train(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RunTrainer, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            task.train(settings)
    assert not (Path(settings.run) / "model").exists()
    assert not (Path(settings.run) / f"checkpoint-{step}").exists(), "the test needs a step that is lost"
    return task.train(settings)


def equal_runs(one: Path, other: Path) -> bool:
    """Return whether two runs have the same final weights, bit for bit, and the same result."""
    ours, theirs = (average([run / "model"]) for run in (one, other))
    results = [json.loads((run / "result.json").read_text()) | {"minutes": 0} for run in (one, other)]
    same = ours.keys() == theirs.keys() and all(bool((ours[name] == theirs[name]).all()) for name in ours)
    return same and results[0] == results[1]


def check_every_setting_acts(
    default: Any, changes: Mapping[str, Mapping[str, Any]], observe: Callable[[Any], Any]
) -> None:
    """Check that every setting of a dataclass changes what is observed of it.

    Args:
        default: an instance of the dataclass.
        changes: by the name of each field what to change, this field and others that it needs.
        observe: of an instance; what it returns is compared.
    """
    names = {each.name for each in fields(default)}
    assert changes.keys() == names, f"say how these act: {sorted(names ^ changes.keys())}"
    for name, given in changes.items():
        needed = {other: value for other, value in given.items() if other != name}
        before, after = replace(default, **needed), replace(default, **given)
        assert observe(before) != observe(after), f"{name} changes nothing"
