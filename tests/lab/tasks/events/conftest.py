"""Toy data and one finished run for the tests of this folder."""

from pathlib import Path

import pytest

from floater.lab.tasks import task

from .small import clocks, settings, waves, write_csv


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with clocks.csv and waves.csv."""
    directory = tmp_path_factory.mktemp("events")
    write_csv(directory / "clocks.csv", clocks(150, seed=0), "type")
    write_csv(directory / "waves.csv", waves(120, seed=0), "x", "y")
    return directory


@pytest.fixture(scope="session")
def trained(folder: Path) -> Path:
    """A finished run of events; read only."""
    training = {"learning_rate": 1e-2, "max_steps": 150, "save_steps": 75, "average_last": 0}
    return task("events").train(settings(folder, "trained", training=training))
