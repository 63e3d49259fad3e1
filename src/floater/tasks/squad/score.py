"""Exact match and F1 of answers, as the official evaluation of SQuAD 1.1 and 2.0 defines them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from floater.tasks.corpora.squad import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """An answer in lower case without punctuation (of ASCII), articles and superfluous whitespace.

    Source: Rajpurkar et al. 2016, section 6.1.

    Example:
        >>> normalised("The  U.S. Senate!")
        'us senate'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    """1 if two answers are the same once normalised, else 0.

    Example:
        >>> exact_match("the Senate", "Senate.")
        1.0
    """
    return float(normalised(answer) == normalised(gold))


def f1(answer: str, gold: str) -> float:
    """The harmonic mean of precision and recall over the words of two answers.

    Of two answers without a word it is 1, as in the evaluation of SQuAD 2.0; that of 1.1 has 0.

    Example:
        >>> f1("US Senate", "the Senate")
        0.6666666666666666
    """
    found, wanted = normalised(answer).split(), normalised(gold).split()
    if not found or not wanted:
        return float(found == wanted)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted))


@dataclass(frozen=True)
class Score:
    """Scores of answers to questions, 0 to 100.

    Args:
        exact: exact match, and
        f1: over all questions.
        total: how many questions.
        by_kind: exact match, F1 and number of those that have an answer and of those that have none; of
            SQuAD 2.0.
        best_exact: the best exact match that a threshold for no answer reaches, and
        best_f1: the best F1; each with that threshold. Of SQuAD 2.0.
    """

    exact: float
    f1: float
    total: int
    by_kind: Mapping[str, tuple[float, float, int]]
    best_exact: tuple[float, float] | None = None
    best_f1: tuple[float, float] | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """Rounded for a log, but for thresholds."""
        found = {"exact": self.exact, "f1": self.f1}
        for kind, (exact, f1_, _) in self.by_kind.items():
            found |= {f"{kind}_exact": exact, f"{kind}_f1": f1_}
        for name, best in (("best_exact", self.best_exact), ("best_f1", self.best_f1)):
            if best is not None:
                found |= {name: best[0], f"{name}_threshold": best[1]}
        return {name: value if "threshold" in name else round(value, 3) for name, value in found.items()}

    def __str__(self) -> str:
        lines = [f"exact match {self.exact:.2f}, F1 {self.f1:.2f} ({self.total:,} questions)"]
        for kind, (exact, f1_, count) in self.by_kind.items():
            said = {"has_answer": "with an answer", "no_answer": "without an answer"}[kind]
            lines.append(f"  {said}: exact match {exact:.2f}, F1 {f1_:.2f} ({count:,})")
        for name, best in (("exact match", self.best_exact), ("F1", self.best_f1)):
            if best is not None:
                lines.append(f"  best {name} {best[0]:.2f}, at the no-answer threshold {best[1]:.3f}")
        return "\n".join(lines)


def score(
    questions: Sequence[Question],
    answers: Mapping[str, str],
    no_answer: Mapping[str, float] | None = None,
) -> Score:
    """Score answers as the official evaluation does.

    The score of a question is the highest over its given answers; in SQuAD 2.0, that is where some questions
    have none, answers that are empty once normalised do not count, and the right answer to a question
    without one is the empty one.

    Source: Rajpurkar et al. 2016, section 6.1, and 2018, section 5.

    Args:
        questions: with what people answered.
        answers: to the questions by their ids, "" for none; a question without one scores 0.
        no_answer: of SQuAD 2.0, how much rather no answer: with a threshold for it the best scores are
            searched for. The answers are then those given before a threshold was applied.

    Example:
        >>> asked = Question("q", "", "Who?", "The US Senate.", ("the Senate", "US Senate"), 4, True)
        >>> print(score([asked], {"q": "Senate"}))
        exact match 100.00, F1 100.00 (1 questions)
    """
    if not questions:
        raise ValueError("there is no question to score")
    kinds = {
        "has_answer": [q.id for q in questions if q.answerable],
        "no_answer": [q.id for q in questions if not q.answerable],
    }
    two = bool(kinds["no_answer"])
    exact, partial = ({q.id: _best(kind, q, answers, two) for q in questions} for kind in (exact_match, f1))
    by_kind = {
        kind: (_mean(exact, ids), _mean(partial, ids), len(ids)) for kind, ids in kinds.items() if ids and two
    }
    best = {}
    if no_answer is not None:
        best = {
            name: best_threshold(questions, scores, answers, no_answer)
            for name, scores in (("best_exact", exact), ("best_f1", partial))
        }
    ids = [question.id for question in questions]
    return Score(_mean(exact, ids), _mean(partial, ids), len(ids), by_kind, **best)


def best_threshold(
    questions: Sequence[Question],
    scores: Mapping[str, float],
    answers: Mapping[str, str],
    no_answer: Mapping[str, float],
) -> tuple[float, float]:
    """The best mean score, and the threshold above which "no answer" is said to reach it.

    Args:
        questions: of SQuAD 2.0.
        scores: 0 to 1, by id.
        answers: that have the scores, by id.
        no_answer: how much rather no answer, by id.

    Returns:
        The score, 0 to 100, and the threshold; the lowest one where several are as good.
    """
    order = sorted(questions, key=lambda q: no_answer[q.id])
    values = [no_answer[q.id] for q in order]
    gains = (scores[q.id] if q.answerable else -float(bool(answers.get(q.id))) for q in order)
    # totals[i]: the first i questions keep their answers, the others have none
    totals = list(accumulate(gains, initial=float(sum(not q.answerable for q in questions))))
    possible = [i for i in range(len(order) + 1) if i in (0, len(order)) or values[i - 1] < values[i]]
    best = max(possible, key=totals.__getitem__)
    return 100 * totals[best] / len(order), values[best - 1] if best else values[0] - 1


def _best(
    kind: Callable[[str, str], float], question: Question, answers: Mapping[str, str], two: bool
) -> float:
    """The highest score of an answer; `two` for SQuAD 2.0."""
    if question.id not in answers:
        return 0.0
    answer, golds = answers[question.id], question.answers
    if two:
        golds = tuple(gold for gold in golds if normalised(gold)) or ("",)
    elif kind is f1 and not normalised(answer):
        return 0.0
    return max(kind(answer, gold) for gold in golds)


def _mean(scores: Mapping[str, float], ids: Sequence[str]) -> float:
    return 100 * sum(scores[i] for i in ids) / len(ids)
