"""Study scores of taggers, against `evaluate`."""

from pathlib import Path

import pytest

from floater.lab.tasks import task


def test_it_has_the_accuracy_of_evaluate(trained: Path, folder: Path) -> None:
    found = task("tagging").evaluate(trained, folder / "valid.conllu")
    assert found.score("accuracy") == pytest.approx(found.scores["accuracy"], abs=0.005)
    assert f"of {found.lengths.sum()} words" in str(found)
    assert [len(line.split()) for line in found.lines] == found.lengths.tolist()
