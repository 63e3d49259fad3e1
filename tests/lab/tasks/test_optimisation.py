"""Checks of the learning rate schedule."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from floater.errors import DataError
from floater.lab.tasks import task
from floater.lab.training.settings import TrainingSettings


def test_a_warm_up_is_held_against_the_steps_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingSettings(
        lr_scheduler_type="linear", warmup_steps=5, num_train_epochs=2, per_device_train_batch_size=1
    )
    prepared: Any = SimpleNamespace(
        settings=SimpleNamespace(training=training), train=SimpleNamespace(lengths=[3] * 4)
    )
    tagging = task("tagging")
    tagging.check_schedule(prepared)
    base = import_module("floater.lab.tasks.task")  # the package has a function of this name
    monkeypatch.setattr(base, "PartialState", lambda: SimpleNamespace(num_processes=2))
    with pytest.raises(DataError, match="warmup_steps is 5; it must be below the training's 4 steps"):
        tagging.check_schedule(prepared)
