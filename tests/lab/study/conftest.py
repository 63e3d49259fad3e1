"""One finished study for the tests of this folder."""

import pytest

from floater.lab.study import run
from floater.lab.study.results import Results

from .small import run_inline, settings


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two models, one of them at the input and at all blocks, a third that fails, an empty bin; read only."""
    folder = tmp_path_factory.mktemp("study") / "study"
    # no batch holds its training pairs: only the training finds that out
    broken = {"position": "none", "settings": {"training": {"max_tokens": 30}}}
    asked = settings(
        folder,
        models={"none": {}, "learned": {}, "broken": broken},
        blocks=["input", "all"],
        bins=[80, 100, 120, 140, 900, 1000],
    )
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch, files=True)
        patch.setattr("floater.lab.tasks.translation.decode.MARGIN", 3)
        return run.study(asked, "small.yaml")


@pytest.fixture
def short_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the translations of an untrained model, which does not end its sentences."""
    monkeypatch.setattr("floater.lab.tasks.translation.decode.MARGIN", 3)
