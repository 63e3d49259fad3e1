"""Reader of SQuAD's files: questions over contexts."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floater.errors import DataError
from floater.lab.tasks.corpora.text import read_json

_ARTICLES = re.compile(r"(?P<file>.+)\[(?P<low>\d*):(?P<high>\d*)\]")


@dataclass(frozen=True)
class Question:
    """A question over a context.

    Args:
        id: id of the question.
        title: title of the article.
        question: text of the question.
        context: text of the paragraph.
        answers: reference answers, none of them blank; empty if there is no answer, or none is known.
        start: offset of the first answer in the context, in characters; None without an answer.
        answerable: True if there is an answer, False if not; None in a file without answers.
    """

    id: str
    title: str
    question: str
    context: str
    answers: tuple[str, ...]
    start: int | None
    answerable: bool | None


@dataclass(frozen=True)
class Questions:
    """The questions of a file.

    Args:
        questions: questions in the order of the file.
        mismatched: ids of the questions whose first answer is not at its stated offset.
    """

    questions: list[Question]
    mismatched: list[str]

    @property
    def labelled(self) -> bool:
        """Return True if each question has a known answer, or is known to have none."""
        return all(question.answerable is not None for question in self.questions)


def read_squad(source: str | Path) -> Questions:
    """Read a file of SQuAD 1.1 or 2.0.

    Args:
        source: path of the file, plain or .gz; a suffix [a:b] selects the articles from number a up to but
            excluding b, counted from 0, as in dev-v1.1.json[:40].

    Raises:
        DataError: if the file cannot be read, has another layout, repeats an id, says of a question both that
            it is impossible and what its answer is, or no question is left; the message names file, article
            and paragraph.

    Example:
        >>> import json, tempfile
        >>> asked = {"id": "q1", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 3}]}
        >>> paragraph = {"context": "In Rome.", "qas": [asked]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "train.json")
        ...     _ = file.write_text(json.dumps({"data": [{"title": "A", "paragraphs": [paragraph]}]}))
        ...     read_squad(file).questions[0].answers
        ('Rome',)
    """
    file, articles = _articles(str(source))
    read = read_json(file)
    data = read.get("data") if isinstance(read, dict) else None
    if not isinstance(data, list):
        raise DataError(f"{file}: not a file of SQuAD: at its top there must be a list named 'data'")
    questions, mismatched = list[Question](), list[str]()
    seen: set[str] = set()
    for number, article in enumerate(data[articles], start=articles.start or 0):
        where = f"{file}, article {number}"
        paragraphs = _get(article, "paragraphs", list, where)
        title = str(_get(article, "title", str, where)) if "title" in article else ""
        for part, paragraph in enumerate(paragraphs):
            here = f"{where} {title!r}, paragraph {part}"
            context = _get(paragraph, "context", str, here)
            for asked in _get(paragraph, "qas", list, here):
                question, matches = _question(asked, title, context, here)
                if question.id in seen:
                    raise DataError(f"{here}: question id {question.id!r} is there twice")
                seen.add(question.id)
                questions.append(question)
                if not matches:
                    mismatched.append(question.id)
    if not questions:
        raise DataError(f"{source}: there is no question in it; the file has {len(data)} articles")
    return Questions(questions, mismatched)


def _question(asked: Any, title: str, context: str, where: str) -> tuple[Question, bool]:
    """Return a question, and whether its first answer is at its stated offset."""
    id_, text = _get(asked, "id", str, where), _get(asked, "question", str, where)
    where = f"{where}, question {id_!r}"
    impossible = _get(asked, "is_impossible", bool, where) if "is_impossible" in asked else None
    if "answers" not in asked:
        return Question(id_, title, text, context, (), None, False if impossible else None), True
    answers = _get(asked, "answers", list, where)
    # some converters write an empty text for no answer, as the official score counts it
    answers = [answer for answer in answers if _get(answer, "text", str, where).strip()]
    if impossible is not None and impossible == bool(answers):
        there = f"there are {len(answers)} answers" if answers else "there is no answer"
        raise DataError(f"{where}: is_impossible is {str(impossible).lower()}, and {there}")
    if not answers:
        return Question(id_, title, text, context, (), None, False), True
    texts = tuple(answer["text"] for answer in answers)
    start = _get(answers[0], "answer_start", int, where)
    matches = start >= 0 and context.startswith(texts[0], start)
    return Question(id_, title, text, context, texts, start, True), matches


def _get(tree: Any, name: str, kind: type, where: str) -> Any:
    value = tree.get(name) if isinstance(tree, dict) else None
    if type(value) is not kind:  # bool is an int to isinstance
        raise DataError(
            f"{where}: not the layout of SQuAD: '{name}' is {reprlib.repr(value)}; it must be there, of type "
            f"{kind.__name__}"
        )
    return value


def _articles(source: str) -> tuple[str, slice]:
    """Split a source into the file and the slice of its articles.

    Example:
        >>> _articles("dev.json[40:]"), _articles("dev.json")
        (('dev.json', slice(40, None, None)), ('dev.json', slice(None, None, None)))
    """
    match = _ARTICLES.fullmatch(source)
    if match is None or Path(source).is_file():
        return source, slice(None)
    low, high = (int(match[name]) if match[name] else None for name in ("low", "high"))
    return match["file"], slice(low, high)
