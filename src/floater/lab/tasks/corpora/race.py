"""Reader of RACE's folders: questions with their options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floater.errors import DataError, no_directory
from floater.lab.tasks.corpora.leftovers import without_leftovers
from floater.lab.tasks.corpora.text import read_json

LEVELS = ("middle", "high")
LETTERS = "ABCD"


@dataclass(frozen=True)
class Question:
    """A question over a passage.

    Args:
        id: id of the passage and the question, such as high1234.txt/2.
        level: "middle" or "high" school.
        article: text of the passage.
        question: text of the question, possibly with a _ in place of the answer.
        options: four possible answers.
        answer: index of the right answer; None if it is unknown.
    """

    id: str
    level: str
    article: str
    question: str
    options: tuple[str, ...]
    answer: int | None

    def stated(self, option: int) -> str:
        """Return the question with one of its options in place of the _, or after the question.

        Example:
            >>> Question("", "high", "", "Rome is in _ .", ("Italy",), None).stated(0)
            'Rome is in Italy .'
        """
        question, answer = self.question.strip(), self.options[option].strip()
        return question.replace("_", answer) if "_" in question else f"{question} {answer}"


def read_race(folder: str | Path) -> list[Question]:
    """Read a split of RACE: a folder with the folders middle and high, or one of these two alone.

    Args:
        folder: path of the folder, such as RACE/train or RACE/test/high.

    Raises:
        DataError: if there is no such folder, or a file is not valid; the message names the file and the
            question.
    """
    root = Path(folder)
    if not root.is_dir():
        raise no_directory(folder)
    levels = {level: root / level for level in LEVELS if (root / level).is_dir()}
    if root.name in LEVELS and not levels:
        levels = {root.name: root}
    if not levels:
        there = ", ".join(sorted(path.name for path in root.iterdir())[:10]) or "nothing"
        raise DataError(f"{folder}: not a split of RACE: it must hold middle and high; it holds {there}")
    questions = [
        question
        for level, files in levels.items()
        for path in sorted(
            without_leftovers(files, files.glob("*.txt")), key=lambda path: (len(path.name), path.name)
        )
        for question in _passage(path, level)
    ]
    if not questions:
        raise DataError(f"{folder}: there is no question in {', '.join(map(str, levels.values()))}")
    return questions


def _passage(path: Path, level: str) -> Iterator[Question]:
    read = read_json(path)
    if not isinstance(read, dict) or not isinstance(read.get("article"), str):
        raise DataError(f"{path}: not a passage of RACE: there must be a text 'article'")
    questions = read.get("questions")
    if not isinstance(questions, list):
        raise DataError(f"{path}: not a passage of RACE: there must be a list 'questions'")
    parts = {"options": read.get("options"), "answers": read.get("answers", [None] * len(questions))}
    for name, part in parts.items():
        if not isinstance(part, list) or len(part) != len(questions):
            raise DataError(f"{path}: '{name}' must be a list, as long as 'questions'")
    rows = zip(questions, *parts.values(), strict=True)
    for number, (asked, options, answer) in enumerate(rows):
        where = f"{path}, question {number}"
        if not isinstance(asked, str) or not _four_texts(options):
            raise DataError(f"{where}: a question must be a text with {len(LETTERS)} options")
        if answer is not None and (not isinstance(answer, str) or answer not in tuple(LETTERS)):
            raise DataError(f"{where}: answer {answer!r} is none of {', '.join(LETTERS)}")
        name = path.name if path.name.startswith(level) else level + path.name  # both levels have a 1001.txt
        yield Question(
            f"{name}/{number}",
            level,
            read["article"],
            asked,
            tuple(options),
            None if answer is None else LETTERS.index(answer),
        )


def _four_texts(options: Any) -> bool:
    return (
        isinstance(options, list)
        and len(options) == len(LETTERS)
        and all(isinstance(option, str) for option in options)
    )
