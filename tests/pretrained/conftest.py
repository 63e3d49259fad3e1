"""Fits of biases that take no time."""

import sys
from pathlib import Path

import pytest

from floater.pretrained.extending import biases

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # what tests and measurements share


@pytest.fixture
def few_steps_for_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random tables of a toy are no smooth biases; how well they are fitted does not matter."""
    monkeypatch.setattr(biases, "STEPS", 2)
