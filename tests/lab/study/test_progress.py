"""The time that is left of a study."""

from __future__ import annotations

import logging
import math

import pytest

from floater.lab.study import progress


@pytest.mark.parametrize(
    ("every", "lines"),
    [
        (
            60.0,
            ["1.5 of 3 trials done, about 30 minutes left", "2.0 of 3 trials done, about 11 minutes left"],
        ),
        (math.inf, ["1.5 of 3 trials done, about 30 minutes left"]),
    ],
)
def test_a_study_estimates_its_time_from_the_trials_that_this_process_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, every: float, lines: list[str]
) -> None:
    """A trial that was finished before says nothing about the time; half a trial took ten minutes."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    caplog.set_level(logging.INFO)
    left = progress.TimeLeft(3, done=1.0, every=every)
    for seconds, done in ((300, 1.0), (600, 1.5), (630, 1.9), (661, 2.0), (700, 3.0)):
        now[0] = seconds
        left.log(done)
    assert caplog.messages == lines
