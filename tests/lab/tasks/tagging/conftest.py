"""One treebank and one finished run for the tests of this folder."""

from pathlib import Path

import pytest

from floater.lab.tasks import task

from .small import settings, write_treebank


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train.conllu and valid.conllu."""
    directory = tmp_path_factory.mktemp("treebank")
    write_treebank(directory, "train", 150, seed=0)
    write_treebank(directory, "valid", 40, seed=1)
    return directory


@pytest.fixture(scope="session")
def trained(folder: Path) -> Path:
    """A finished run over trees, trained until it tags well; read only."""
    training = {"max_steps": 250, "save_steps": 125, "average_last": 0}
    return task("tagging").train(settings(folder, "trained", training=training))
