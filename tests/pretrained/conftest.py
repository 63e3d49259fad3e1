"""Fits of biases that take no time."""

import pytest

from floater.pretrained.extending import biases


@pytest.fixture
def few_steps_for_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random tables of a toy are no smooth biases; how well they are fitted does not matter."""
    monkeypatch.setattr(biases, "STEPS", 2)
