"""The checkpoints that a run's final model consists of."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from floater.errors import DataError
from floater.lab.training.checkpoints import checkpoints, step_of

logger = logging.getLogger(__name__)


def final_checkpoints(
    run: Path,
    *,
    average_last: int,
    saved_steps: Sequence[int],
    best_step: int | None,
    scores: Mapping[int, float],
    greater: bool,
) -> list[Path]:
    """Return the checkpoints whose mean is the final model.

    Those of them that are damaged or gone are named in a warning, and the mean is that of the others.

    Args:
        run: directory of the run.
        average_last: number of last checkpoints; 0 for the best one.
        saved_steps: steps at which the training wrote checkpoints, in order.
        best_step: step of the best validation; None if there was no validation.
        scores: score of each validation by its step.
        greater: True if higher scores are better.

    Raises:
        DataError: if there was no validation to choose the best one by, or no checkpoint is left.
    """
    present = checkpoints(run)
    if not average_last and best_step is None:
        raise DataError(f"{run}: training ended before a validation, so there is no best checkpoint")
    if not present:
        raise DataError(f"{run} has no checkpoint to make the final model of; remove it to train again")
    if average_last:
        expected = [f"checkpoint-{step}" for step in saved_steps[-average_last:]]
        lost = {*expected} - {path.name for path in present}
        if lost:
            logger.warning(
                "the final model is a mean without %s, which %s",
                ", ".join(name for name in expected if name in lost),
                "is damaged or gone" if len(lost) == 1 else "are damaged or gone",
            )
        return [path for path in present if path.name in expected] or present[-average_last:]
    best = run / f"checkpoint-{best_step}"
    if best in present:  # by its name, as the run may have been renamed
        return [best]
    validated = [path for path in present if step_of(path) in scores]
    if not validated:
        raise DataError(f"{run}: {best.name}, the best one, is gone, and no other was validated")
    sign = 1 if greater else -1
    second = max(validated, key=lambda path: (sign * scores[step_of(path)], step_of(path)))
    logger.warning("%s, the best one, is gone: the final model is %s", best.name, second.name)
    return [second]
