"""Files of SQuAD: what they hold, parts of them, and what is refused with its place."""

import json
import os
from pathlib import Path

import pytest

from floater.errors import DataError
from floater.lab.tasks.corpora.squad import read_squad

from .small import asked, squad, write_squad

DATA = Path(os.environ.get("FLOATER_DATA", Path(__file__).parents[5] / "shared" / "data")) / "squad"


def written(folder: Path, value: object) -> Path:
    path = folder / "x.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_both_versions(tmp_path: Path) -> None:
    context = "In Rome, in the Senate."
    plausible = {"plausible_answers": [{"text": "Rome", "answer_start": 3}], "is_impossible": True}
    questions = [
        asked("a", "Where?", context, "Rome", "the Senate"),
        asked("b", "Who?", context, is_impossible=False) | asked("b", "Who?", context, "Senate"),
        asked("c", "When?", context, **plausible),
    ]
    actual = read_squad(written(tmp_path, squad([(context, questions)])))
    assert actual.labelled
    assert actual.mismatched == []
    assert [q.answers for q in actual.questions] == [("Rome", "the Senate"), ("Senate",), ()]
    assert [q.start for q in actual.questions] == [3, 16, None]
    assert [q.answerable for q in actual.questions] == [True, True, False]


def test_a_test_set_has_no_answers(tmp_path: Path) -> None:
    question = {"id": "a", "question": "Where?"}
    actual = read_squad(written(tmp_path, squad([("In Rome.", [question])])))
    assert not actual.labelled


def test_answers_that_do_not_stand_where_they_should_are_named(tmp_path: Path) -> None:
    wrong = asked("b", "Where?", "In Rome.", "Rome")
    wrong["answers"][0]["answer_start"] = 2
    negative = asked("c", "Where?", "In Rome.", "Bonn")
    actual = read_squad(
        written(tmp_path, squad([("In Rome.", [asked("a", "Where?", "In Rome.", "Rome"), wrong, negative])]))
    )
    assert actual.mismatched == ["b", "c"]
    assert len(actual.questions) == 3


def test_a_part_of_the_articles(tmp_path: Path) -> None:
    path = write_squad(tmp_path / "a.json", articles=3, seed=0)
    whole = read_squad(path).questions
    parts = [read_squad(f"{path}[{part}]").questions for part in (":2", "2:", "1:2")]
    assert parts[0] + parts[1] == whole
    assert {q.title for q in parts[2]} == {"T1"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "at its top there must be a list named 'data'"),
        ({"data": [None]}, "article 0: not the layout of SQuAD: 'paragraphs'"),
        ({"data": []}, "there is no question in it; the file has 0 articles"),
        ({"data": [{"title": "A"}]}, "article 0: not the layout of SQuAD: 'paragraphs'"),
        (squad([("c", [{"id": "a", "answers": []}])]), "article 0 'T0', paragraph 0: .*'question'"),
        (squad([("c", [asked("a", "q", "c", "c")] * 2)]), "question id 'a' is there twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, value: object, message: str) -> None:
    path = written(tmp_path, value)
    with pytest.raises(DataError, match=message) as refused:
        read_squad(path)
    assert str(refused.value).startswith(str(path))


def test_a_broken_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"data":\n [}')
    with pytest.raises(DataError, match="line 2, column 3: not JSON"):
        read_squad(path)
    path.write_text("")
    with pytest.raises(DataError, match="line 1, column 1: not JSON"):
        read_squad(path)


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")
@pytest.mark.parametrize(("version", "questions", "without"), [("1.1", 10570, 0), ("2.0", 11873, 5945)])
def test_real_files(version: str, questions: int, without: int) -> None:
    actual = read_squad(DATA / f"dev-v{version}.json")
    assert len(actual.questions) == questions
    assert sum(not q.answerable for q in actual.questions) == without
    assert actual.mismatched == []


@pytest.mark.parametrize("flag", ["false", "False", "0", "", 0, 1, None])
def test_what_says_that_there_is_no_answer_is_a_boolean(tmp_path: Path, flag: object) -> None:
    question = asked("a", "Where?", "In Rome.", "Rome", is_impossible=flag)
    with pytest.raises(DataError, match=r"'is_impossible' is .*; it must be there, of type bool"):
        read_squad(written(tmp_path, squad([("In Rome.", [question])])))


@pytest.mark.parametrize(("flag", "answers"), [(True, ("Rome",)), (False, ()), (False, ("",))])
def test_a_question_is_not_both_with_and_without_an_answer(
    tmp_path: Path, flag: bool, answers: tuple[str, ...]
) -> None:
    question = asked("a", "Where?", "In Rome.", *answers, is_impossible=flag)
    with pytest.raises(DataError, match=f"question 'a': is_impossible is {str(flag).lower()}, and there"):
        read_squad(written(tmp_path, squad([("In Rome.", [question])])))


def test_a_blank_answer_is_none(tmp_path: Path) -> None:
    questions = [
        asked("a", "Where?", "In Rome.", "", " "),
        asked("b", "Where?", "In Rome.", "", is_impossible=True),
        asked("c", "Where?", "In Rome.", "", "Rome"),
    ]
    actual = read_squad(written(tmp_path, squad([("In Rome.", questions)])))
    assert [(q.answers, q.start, q.answerable) for q in actual.questions] == [
        ((), None, False),
        ((), None, False),
        (("Rome",), 3, True),
    ]
    assert actual.mismatched == []


def test_a_place_is_a_number(tmp_path: Path) -> None:
    question = asked("a", "Where?", "In Rome.", "Rome")
    question["answers"][0]["answer_start"] = True
    with pytest.raises(DataError, match=r"'answer_start' is True; it must be there, of type int"):
        read_squad(written(tmp_path, squad([("In Rome.", [question])])))
