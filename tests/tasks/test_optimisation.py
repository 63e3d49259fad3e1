"""Checks of the learning rate schedule."""

from types import SimpleNamespace

import pytest

from floater.errors import DataError
from floater.training.arguments import check_schedule
from floater.training.settings import TrainingSettings


def test_a_warm_up_is_held_against_the_steps_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingSettings(
        lr_scheduler_type="linear", warmup_steps=5, num_train_epochs=2, per_device_train_batch_size=1
    )
    check_schedule(training, [3] * 4)
    monkeypatch.setattr("floater.training.arguments.PartialState", lambda: SimpleNamespace(num_processes=2))
    with pytest.raises(DataError, match="warmup_steps is 5 steps, of only 4"):
        check_schedule(training, [3] * 4)
