"""EM, F1 and the best threshold against slow counts of one's own."""

import re
import string
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from floater.lab.tasks.corpora.squad import Question
from floater.lab.tasks.squad.score import best_threshold, exact_match, f1, score

WORD = st.sampled_from(["the", "a", "An", "Rome", "rome,", "U.S.", "in", "–", "", "  ", "theatre", "x-y"])
TEXT = st.lists(WORD, max_size=5).map(" ".join)


def words(text: str) -> list[str]:
    """The rules of the evaluation, a word at a time: lower case, no punctuation, then no articles."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return [word for word in re.split(r"\s+", bare) if word and word not in ("a", "an", "the")]


def slow_f1(answer: str, gold: str) -> Fraction:
    actual, wanted = words(answer), words(gold)
    if not actual or not wanted:
        return Fraction(actual == wanted)
    left, common = list(wanted), 0
    for word in actual:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return Fraction(0)
    precision, recall = Fraction(common, len(actual)), Fraction(common, len(wanted))
    return 2 * precision * recall / (precision + recall)


@given(TEXT, TEXT)
def test_exact_match_and_f1_are_those_of_a_count_by_hand(answer: str, gold: str) -> None:
    assert exact_match(answer, gold) == (words(answer) == words(gold))
    assert f1(answer, gold) == pytest.approx(float(slow_f1(answer, gold)))


def question(id_: str, *answers: str) -> Question:
    return Question(id_, "", "", "", answers, 0 if answers else None, bool(answers))


def test_known_scores() -> None:
    """By hand: (1 + 0 + 0) / 3 and (1 + 2/3 + 0) / 3."""
    questions = [question("a", "Denver Broncos", "The Broncos"), question("b", "in 2015"), question("c", "x")]
    actual = score(questions, {"a": "broncos!", "b": "2015", "d": "x"})
    assert actual.scores == {"exact": 33.333, "f1": 55.556}
    by_question = {name: actual.score(name) for name in actual.metrics}  # of a study, F1 first
    assert by_question == {"f1": pytest.approx(100 * 5 / 9), "exact": pytest.approx(100 / 3)}


def test_questions_without_an_answer_want_the_empty_one() -> None:
    questions = [question("a", "Rome"), question("b"), question("c")]
    actual = score(questions, {"a": "Rome", "b": "", "c": "Bonn"})
    kinds = {"has_answer_exact": 100, "has_answer_f1": 100, "no_answer_exact": 50, "no_answer_f1": 50}
    assert actual.scores == {"exact": 66.667, "f1": 66.667} | kinds
    assert [line.rpartition(" ")[2] for line in str(actual).splitlines()] == ["questions)", "(1)", "(2)"]


def test_answers_of_articles_alone_count_by_version() -> None:
    """1.1 keeps the answer "the", which has no word: exact, but F1 0; 2.0 takes it away."""
    one = score([question("a", "the")], {"a": "a"})
    assert one.scores == {"exact": 100, "f1": 0}
    two = score([question("a", "the", "Rome"), question("b")], {"a": "a", "b": ""})
    assert (two.scores["has_answer_exact"], two.scores["has_answer_f1"]) == (0, 0)


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_no_threshold_is_better_than_the_best(seed: int) -> None:
    """Tried one by one: every threshold at, between and beyond the values."""
    draw = np.random.default_rng(seed)
    questions = [question(str(i), *(["x"] if draw.random() < 0.5 else [])) for i in range(8)]
    answers = {q.id: draw.choice(["x", "y", ""]) for q in questions}
    rather = {q.id: float(draw.integers(-3, 3)) for q in questions}
    exact = {q.id: float(answers[q.id] == (q.answers[0] if q.answers else "")) for q in questions}

    def reached(threshold: float) -> float:
        said = {i: "" if rather[i] > threshold else text for i, text in answers.items()}
        return (
            100 * sum(said[q.id] == (q.answers[0] if q.answers else "") for q in questions) / len(questions)
        )

    best, threshold = best_threshold(questions, exact, answers, rather)
    assert best == pytest.approx(reached(threshold))
    assert best == pytest.approx(max(reached(x / 2) for x in range(-10, 10)))
