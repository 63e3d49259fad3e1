"""Scoring a run on a test set."""

import shutil
from pathlib import Path

import pytest
import yaml

from floater.errors import DataError
from floater.lab.tasks import task
from floater.lab.tasks.translation import Decoding, decode, translate
from floater.lab.tasks.translation.bleu import length_bins, length_table, score
from floater.lab.text.languages import lengths

from .conftest import Files
from .small import evaluate, load_run, pairs

GREEDY = Decoding(beam=1, max_ratio=0.1)


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_a_run_is_scored_by_its_translations(trained: Path, files: Files) -> None:
    test = pairs(files["test"])
    source, reference = files["test"]
    actual = evaluate(trained, source, reference=reference, bins=(4, 8), decoding=GREEDY)
    hypotheses = translate(*load_run(trained), test.source, GREEDY)
    assert actual.lines == hypotheses
    wanted = score(hypotheses, test.target, language="de", lengths=lengths(test.source))
    assert str(actual).splitlines() == [*str(wanted).splitlines(), *length_table(length_bins(wanted, [4, 8]))]
    assert actual.scores == wanted.scores


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_the_language_is_that_of_the_run_or_the_one_given(trained: Path, files: Files) -> None:
    source, reference = files["test"]
    german = evaluate(trained, source, reference=reference, decoding=GREEDY)
    french = evaluate(trained, source, reference=reference, decoding=GREEDY, language="fr")
    unknown = evaluate(trained / "model", source, reference=reference, decoding=GREEDY)
    assert "moses-de" in german.signatures["tokenised_bleu"]
    assert "moses-fr" in french.signatures["tokenised_bleu"]
    assert "tokenised_bleu" not in unknown.scores
    assert german.scores["bleu"] == french.scores["bleu"] == unknown.scores["bleu"]


def test_notes_count_what_was_cut_and_what_is_empty(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the four sources are translated, to a token each; all four pairs are scored."""
    monkeypatch.setattr(decode, "MARGIN", 1)
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_text("Spain\n\nItaly\n \n", encoding="utf-8")
    reference.write_text("Spanien\nJa\n\n \n", encoding="utf-8")
    actual = evaluate(trained, source, reference=reference, decoding=Decoding(beam=1, max_ratio=0.01))
    assert list(actual.notes) == [
        "2 of 4 translations reached the longest output and were cut",
        "3 of 4 pairs have an empty side and are scored; a study excludes them",
    ]
    assert [record.message for record in caplog.records][-2:] == list(actual.notes)
    assert len(actual.lines) == 4


def test_files_that_are_not_aligned_are_refused(trained: Path, files: Files) -> None:
    with pytest.raises(DataError, match="8 and 7 lines"):
        evaluate(trained, files["test"][0], reference=files["valid"][1])


def test_a_run_on_moses_tokens_reads_and_writes_plain_text(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that repeats what it reads gets it as tokens, and all of the plain reference right."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["moses"] = True
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    read: list[str] = []

    def repeat(model: object, tokenizer: object, lines: list[str], *others: object) -> tuple[list[str], int]:
        read.extend(lines)
        return lines, 0

    module = "floater.lab.tasks.translation"
    monkeypatch.setattr(f"{module}.translate_and_count", repeat)
    monkeypatch.setattr(f"{module}.translate", lambda *arguments: repeat(*arguments)[0])
    text = tmp_path / "text.en"
    text.write_text("Die wohl-bekannte (alte) Katze ist hier & da.\n")
    actual = evaluate(run, text, reference=text)
    assert read == ["Die wohl @-@ bekannte ( alte ) Katze ist hier &amp; da ."]
    assert actual.lines == ["Die wohl-bekannte (alte) Katze ist hier & da."]
    assert actual.scores["bleu"] == actual.scores["tokenised_bleu"] == pytest.approx(100)
    assert task("translation").translator(run)(["„So“, sagt sie."]) == ["„So“, sagt sie."]
