"""Study scores of taggers, against `evaluate`."""

from pathlib import Path

import pytest

from floater.lab.tasks import task


def test_it_has_the_accuracy_of_evaluate(trained: Path, folder: Path) -> None:
    actual = task("tagging").evaluate(trained, folder / "valid.conllu")
    assert actual.score("accuracy") == pytest.approx(actual.scores["accuracy"], abs=0.005)
    assert f"of {actual.lengths.sum()} words" in str(actual)
    assert [len(line.split()) for line in actual.lines] == actual.lengths.tolist()
