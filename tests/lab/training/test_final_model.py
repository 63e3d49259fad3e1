"""The checkpoints of which a final model is the mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from floater.errors import DataError
from floater.lab.training.final_model import final_checkpoints


def names(run: Path, present: list[int], **options: object) -> list[str]:
    """Return the names of the final checkpoints of a run that has those of some steps."""
    for step in present:
        (run / f"checkpoint-{step}").mkdir()
    defaults = {"average_last": 0, "saved_steps": [2, 4, 6], "best_step": 4, "greater": True}
    scores = {2: 0.5, 4: 0.9, 6: 0.5}
    return [path.name for path in final_checkpoints(run, **({"scores": scores} | defaults | options))]


@pytest.mark.parametrize(
    ("present", "options", "expected"),
    [
        ([2, 4, 6], {"average_last": 2}, ["checkpoint-4", "checkpoint-6"]),
        (
            [2, 4, 6, 8],
            {"average_last": 2},
            ["checkpoint-4", "checkpoint-6"],
        ),  # 8 is not of this training
        ([2, 6], {"average_last": 2}, ["checkpoint-6"]),
        ([2], {"average_last": 2}, ["checkpoint-2"]),
        ([2, 4, 6], {}, ["checkpoint-4"]),
        ([2, 6], {}, ["checkpoint-6"]),  # of equal scores the later one
        ([2, 6], {"scores": {2: 0.1, 4: 0.0, 6: 0.2}, "greater": False}, ["checkpoint-2"]),
    ],
)
def test_they_are_the_last_ones_or_the_best_one_that_is_left(
    tmp_path: Path, present: list[int], options: dict[str, object], expected: list[str]
) -> None:
    assert names(tmp_path, present, **options) == expected


@pytest.mark.parametrize(
    ("present", "options", "message"),
    [
        ([2], {"best_step": None}, "training ended before a validation"),
        ([], {}, "has no checkpoint to make the final model of"),
        ([8], {}, "checkpoint-4, the best one, is gone, and no other was validated"),
    ],
)
def test_without_one_the_run_is_refused(
    tmp_path: Path, present: list[int], options: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        names(tmp_path, present, **options)
