"""Train a finished run for longer."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from floater.errors import DataError
from floater.lab.settings import load
from floater.lab.training.checkpoints import last_checkpoint
from floater.lab.training.run import MODEL, SETTINGS, find_run
from floater.lab.training.run_data import RunData

logger = logging.getLogger(__name__)


def lengthen(
    settings: Any, *, epochs: int | None = None, steps: int | None = None, accept_changed_data: bool = False
) -> tuple[Any, Any]:
    """Return the settings of a longer training of a run, given as the total number of epochs or of steps.

    The run may be finished: its training then resumes from the last checkpoint. Nothing is written here;
    `Task.train` replaces the run's settings, and removes its final model, once there is a new checkpoint. A
    learning rate schedule that ends at the last step becomes that of the longer training from there on.

    Args:
        settings: settings of the run, as the configuration has them.
        epochs: total number of epochs; None if `steps` is given.
        steps: total number of steps; None if `epochs` is given.
        accept_changed_data: whether the run may resume on other data than it began with.

    Returns:
        The settings with the new length; and those with the length of the run, if it is to be changed, or
        None.

    Raises:
        DataError: if the length of the run is set in the other unit, the run is at least as long already, it
            began on other data, or it has no checkpoint to resume from.
        SettingsError: if the run's own settings cannot be read.
    """
    name, count = ("max_steps", steps) if epochs is None else ("num_train_epochs", epochs)
    assert count is not None
    longer = replace(settings, training=replace(settings.training, **{name: count}))
    if epochs is not None and settings.training.max_steps is not None:
        raise DataError(f"training.max_steps is {settings.training.max_steps}: give --steps, not --epochs")
    config = Path(settings.run) / SETTINGS
    before = load(type(settings), config).training if config.is_file() else settings.training
    length = {"num_train_epochs": before.num_train_epochs, "max_steps": before.max_steps}
    shorter = replace(settings, training=replace(settings.training, **length))
    run = find_run(shorter, accept_changed_data=accept_changed_data)
    if not config.is_file():
        return longer, None
    RunData(run, settings, accept=accept_changed_data).check()
    present = getattr(before, name)
    if present is None:
        raise DataError(f"{run} trains for {before.num_train_epochs} epochs: give --epochs, not --steps")
    if present == count and not (run / MODEL).is_dir():
        return longer, None
    if present >= count:
        raise DataError(f"{run} trains to training.{name}={present} already; give more than that")
    if last_checkpoint(run) is None and (run / MODEL).is_dir():
        raise DataError(f"{run} has no checkpoint to resume from; a new run can start from its weights")
    logger.info("%s trains to training.%s=%s instead of %s", run, name, count, present)
    return longer, shorter
