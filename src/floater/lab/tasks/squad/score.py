"""Exact match and F1 of answers, as in the official evaluation of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from floater.lab.tasks.corpora.squad import Question
from floater.lab.tasks.measurement import Measurement

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return an answer in lower case, without ASCII punctuation, articles and superfluous whitespace.

    Source: Rajpurkar et al. 2016, section 6.1.

    Example:
        >>> normalised("The  U.S. Senate!")
        'us senate'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """Return 1 if two answers are the same after normalisation, else 0.

    Example:
        >>> exact_match("the Senate", "Senate.")
        1.0
    """
    return float(normalised(answer) == normalised(gold))


def f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall over the words of two answers.

    It is 1 for two answers without a word, as in the evaluation of SQuAD 2.0; in that of 1.1 it is 0.

    Example:
        >>> f1("US Senate", "the Senate")
        0.6666666666666666
    """
    words, gold_words = normalised(answer).split(), normalised(gold).split()
    if not words or not gold_words:
        return float(words == gold_words)
    common = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * common / (len(words) + len(gold_words))


def score(questions: Sequence[Question], answers: Mapping[str, str]) -> Measurement:
    """Score answers as the official evaluation does.

    The score of a question is the highest over its reference answers. In SQuAD 2.0, that is, if some
    questions have no answer, reference answers that are empty after normalisation do not count, and the
    correct answer to a question without an answer is the empty one.

    Source: Rajpurkar et al. 2016, section 6.1, and 2018, section 5.

    Args:
        questions: questions with their reference answers.
        answers: answers by question id, "" for no answer; a question without an entry scores 0.

    Returns:
        Exact match and F1, 0 to 100; for SQuAD 2.0 also those of the questions with and without an answer.
        The length of a question is that of its context in words.

    Example:
        >>> asked = Question("q", "", "Who?", "The US Senate.", ("the Senate", "US Senate"), 4, True)
        >>> print(score([asked], {"q": "Senate"}))
        exact match 100.00, F1 100.00 (1 questions)
    """
    if not questions:
        raise ValueError("there is no question to score")
    exact, partial = _by_question(questions, answers)
    scores = {"exact": _mean(exact, questions), "f1": _mean(partial, questions)}
    report = [f"exact match {scores['exact']:.2f}, F1 {scores['f1']:.2f} ({len(questions):,} questions)"]
    for kind, label in (("has_answer", "with an answer"), ("no_answer", "without an answer")):
        chosen = [q for q in questions if bool(q.answerable) == (kind == "has_answer")]
        if chosen and not all(q.answerable for q in questions):
            mean, mean_f1 = _mean(exact, chosen), _mean(partial, chosen)
            scores |= {f"{kind}_exact": mean, f"{kind}_f1": mean_f1}
            report.append(f"  {label}: exact match {mean:.2f}, F1 {mean_f1:.2f} ({len(chosen):,})")
    rounded = {name: round(value, 3) for name, value in scores.items()}
    by_question = {
        name: np.array([[values[question.id], 1] for question in questions])
        for name, values in (("f1", partial), ("exact", exact))
    }
    words = np.array([len(question.context.split()) for question in questions])
    return Measurement(words, by_question, scores=rounded, report="\n".join(report))


def best_scores(
    questions: Sequence[Question], answers: Mapping[str, str], no_answer: Mapping[str, float]
) -> Measurement:
    """Search the thresholds for no answer with the best exact match and the best F1.

    Args:
        questions: questions of SQuAD 2.0.
        answers: answers before a threshold is applied, by id.
        no_answer: score of no answer minus that of the answer, by id.
    """
    scores: dict[str, float] = {}
    report = []
    labels = {"best_exact": "exact match", "best_f1": "F1"}
    for (name, label), by_question in zip(labels.items(), _by_question(questions, answers), strict=True):
        best, threshold = best_threshold(questions, by_question, answers, no_answer)
        scores |= {name: round(best, 3), f"{name}_threshold": threshold}
        report.append(f"  best {label} {best:.2f}, at the no-answer threshold {threshold:.3f}")
    return Measurement(scores=scores, report="\n".join(report))


def best_threshold(
    questions: Sequence[Question],
    scores: Mapping[str, float],
    answers: Mapping[str, str],
    no_answer: Mapping[str, float],
) -> tuple[float, float]:
    """Return the best mean score, and its threshold for no answer.

    Args:
        questions: questions of SQuAD 2.0.
        scores: scores of the answers, 0 to 1, by id.
        answers: answers with these scores, by id.
        no_answer: score of no answer minus that of the answer, by id.

    Returns:
        The score, 0 to 100, and the threshold, the lowest of several equally good ones.
    """
    order = sorted(questions, key=lambda q: no_answer[q.id])
    values = [no_answer[q.id] for q in order]
    gains = (scores[q.id] if q.answerable else -float(bool(answers.get(q.id))) for q in order)
    # totals[i]: the first i questions keep their answers, the others have none
    totals = list(accumulate(gains, initial=float(sum(not q.answerable for q in questions))))
    possible = [i for i in range(len(order) + 1) if i in (0, len(order)) or values[i - 1] < values[i]]
    best = max(possible, key=totals.__getitem__)
    return 100 * totals[best] / len(order), values[best - 1] if best else values[0] - 1


def _by_question(
    questions: Sequence[Question], answers: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return exact match and F1 of each question by its id, 0 to 1."""
    two = not all(question.answerable for question in questions)
    exact, partial = (
        {question.id: _best(kind, question, answers.get(question.id), two) for question in questions}
        for kind in (exact_match, f1)
    )
    return exact, partial


def _best(kind: Callable[[str, str], float], question: Question, answer: str | None, two: bool) -> float:
    """Return the highest score of an answer; `two` for SQuAD 2.0."""
    if answer is None:
        return 0.0
    golds = question.answers
    if two:
        golds = tuple(gold for gold in golds if normalised(gold)) or ("",)
    elif kind is f1 and not normalised(answer):
        return 0.0
    return max(kind(answer, gold) for gold in golds)


def _mean(scores: Mapping[str, float], questions: Sequence[Question]) -> float:
    return 100 * sum(scores[question.id] for question in questions) / len(questions)
