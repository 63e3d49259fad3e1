"""Windows hold every answer somewhere, and answers are read back from perfect logits."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from floater.errors import DataError
from floater.lab.tasks.corpora.squad import Question
from floater.lab.tasks.finetuning.checkpoint import load_tokenizer
from floater.lab.tasks.finetuning.features import LABEL
from floater.lab.tasks.squad import features as squad_features
from floater.lab.tasks.squad.features import read_answers, windows, with_threshold

CONTEXT = "the film was not good, it is in Rome (the city) and was in 'Bonn' a bad film."


def questions(*answers: str) -> list[Question]:
    actual = [
        Question(f"q{i}", "", "where is it?", CONTEXT, (answer,), CONTEXT.index(answer), True)
        for i, answer in enumerate(answers)
    ]
    return [*actual, Question("none", "", "where?", CONTEXT, (), None, False)]


@pytest.mark.parametrize("max_length", [16, 24, 64])
def test_labels_are_where_the_answers_are(bert: Path, max_length: int) -> None:
    asked = questions("Rome", "film", "Bonn", "the city", "film was not good", "a bad film")
    features = windows(
        load_tokenizer(str(bert)), asked, max_length=max_length, stride=6, max_question=8, labelled=True
    )
    logits, labelled = [], set()
    for row, window in zip(features.rows, features.windows, strict=True):
        assert len(row["input_ids"]) <= max_length
        start, end = row[LABEL]
        perfect = np.zeros((2, len(row["input_ids"])), dtype=np.float32)
        perfect[0, start] = perfect[1, end] = 5.0
        logits.append(perfect)
        if start != window.null:
            low, high = window.offsets[start][0], window.offsets[end][1]
            assert CONTEXT[low:high] == asked[window.question].answers[0]
            labelled.add(window.question)
    assert labelled == set(range(len(asked) - 1)), "each answer is whole in some window"
    texts, rather = read_answers(features, logits, asked, 30)
    assert [texts[q.id] for q in asked[:-1]] == [q.answers[0] for q in asked[:-1]]
    # a window that lacks the answer says "none", but the lowest such score of all windows counts
    assert with_threshold(texts, rather, 0.0) == {q.id: q.answers[0] if q.answers else "" for q in asked}


@pytest.mark.parametrize("answer", [" Rome", "Rome ", "Rome"])
def test_spaces_around_an_answer_are_no_part_of_it(bert: Path, answer: str) -> None:
    asked = questions(answer)
    features = windows(
        load_tokenizer(str(bert)), asked, max_length=64, stride=6, max_question=8, labelled=True
    )
    start, end = features.rows[0][LABEL]
    offsets = features.windows[0].offsets
    assert CONTEXT[offsets[start][0] : offsets[end][1]] == "Rome"
    assert features.whole == {0}


def test_every_token_of_a_context_is_in_a_window_and_neighbours_share_the_stride(bert: Path) -> None:
    tokenizer = load_tokenizer(str(bert))
    features = windows(tokenizer, questions()[:1], max_length=16, stride=6, max_question=8)
    starts = [[int(low) for low, _ in window.offsets if low >= 0] for window in features.windows]
    alone = tokenizer(CONTEXT, add_special_tokens=False, return_offsets_mapping=True)
    offsets_alone = [low for low, _ in alone["offset_mapping"]]
    assert sorted(set().union(*starts)) == offsets_alone
    assert all(before[-6:] == after[:6] for before, after in pairwise(starts))


def test_the_best_span_is_that_of_a_search_through_all(bert: Path) -> None:
    draw = np.random.default_rng(0)
    asked = questions("Rome")
    features = windows(load_tokenizer(str(bert)), asked, max_length=24, stride=6, max_question=8)
    logits = [draw.normal(size=(2, len(row["input_ids"]))).astype(np.float32) for row in features.rows]
    texts, rather = read_answers(features, logits, asked, 4)
    for number, question in enumerate(asked):
        best, nothing = (-np.inf, ""), np.inf
        for window, (start, end) in zip(features.windows, logits, strict=True):
            if window.question != number:
                continue
            nothing = min(nothing, start[0] + end[0])
            for i, (low, _) in enumerate(window.offsets):
                for j in range(i, min(i + 4, len(start))):
                    high = window.offsets[j][1]
                    if low >= 0 and high >= 0:
                        best = max(best, (start[i] + end[j], CONTEXT[low:high]))
        assert texts[question.id] == best[1]
        assert rather[question.id] == pytest.approx(nothing - best[0], rel=1e-5)


def test_long_questions_are_cut_and_counted(bert: Path) -> None:
    tokenizer = load_tokenizer(str(bert))
    long = [Question("q", "", "where " * 20, CONTEXT, (), None, False)]
    features = windows(tokenizer, long, max_length=24, stride=4, max_question=3)
    assert features.cut == 1
    assert features.rows[0]["token_type_ids"].index(1) == 5
    with pytest.raises(DataError, match="has no room for a question"):
        windows(tokenizer, long, max_length=24, stride=4, max_question=20)


@pytest.mark.parametrize("context", ["", "  ", "\u200b"])
def test_a_context_without_a_token_has_no_answer(bert: Path, context: str) -> None:
    tokenizer = load_tokenizer(str(bert))
    asked = [Question("q", "", "Where?", context, (), None, None)]
    features = windows(tokenizer, asked, max_length=32, stride=4, max_question=16)
    logits = [np.zeros((2, len(row["input_ids"])), np.float32) for row in features.rows]
    texts, rather = read_answers(features, logits, asked, 30)
    assert texts == {"q": ""}
    assert rather == {"q": np.inf}


def test_windows_encoded_in_parts_are_those_encoded_at_once(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = questions("Rome", "film", "Bonn", "the city", "a bad film")
    options = {"max_length": 16, "stride": 6, "max_question": 2}
    whole = windows(load_tokenizer(str(bert)), asked, labelled=True, **options)
    monkeypatch.setattr(squad_features, "AT_ONCE", 2)
    parts = windows(load_tokenizer(str(bert)), asked, labelled=True, **options)
    assert list(parts.rows) == list(whole.rows)
    assert [window.question for window in parts.windows] == [window.question for window in whole.windows]
    assert (parts.cut, parts.whole) == (whole.cut, whole.whole)
