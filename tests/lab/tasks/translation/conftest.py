"""One corpus and one finished run for the tests of this folder."""

from pathlib import Path

import pytest

from .small import settings, train, write_corpus

Files = dict[str, tuple[Path, Path]]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Path:
    """A finished run of a FLOATER model, validated every second step; read only."""
    folder = tmp_path_factory.mktemp("trained")
    return train(settings(folder, files, "run", training={"eval_steps": 2}))
