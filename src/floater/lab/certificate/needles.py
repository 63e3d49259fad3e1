"""Synthetic tasks that show whether a model finds what it reads, at every depth of a long text.

The tasks are those of RULER (Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context
Language Models?", section 3), in wordings of our own and without examples in the prompt: retrieval of a
number between repeated sentences ("passkey", Mohtashami and Jaggi 2023) and in a real text, with one key,
several values or several keys; tracking of variables; and common words. Question answering, which needs
labelled questions, is replaced by the completion of a sentence of the text. The tasks on one text share it:
it is read once for all questions, and the needles of the other questions are distractors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.finetuning.text import special

TASKS = ("passkey", "tracking", "multi-key", "multi-value", "multi-query", "completion", "common words")
KINDS: dict[str, tuple[str, ...]] = {"filler": TASKS[:2], "text": TASKS[2:6], "words": TASKS[6:]}
"""The tasks on each kind of text."""

KEYS, VALUES, BOXES, CHAINS, HOPS, SENTENCES = 8, 4, 5, 2, 4, 5
COMMON, OFTEN, SELDOM = 10, 30, 3  # common words, their occurrences, and those of the others, as in RULER
SLACK = 8
"""Number of tokens of an answer beyond those of what it should contain."""
_ROOM = 96
"""Number of tokens that are kept free for the longest question and its answer, or more if they take more."""

_FILLER = "Rain falls on the hills. The river runs to the sea. Clouds come back over the land."
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_NOUNS = (
    *("anchor", "basket", "candle", "dragon", "engine", "falcon", "garden", "hammer", "island", "jacket"),
    *("kettle", "ladder", "magnet", "needle", "orchid", "parrot", "quarry", "ribbon", "saddle", "tunnel"),
    *("urchin", "velvet", "walnut", "yogurt", "zipper", "bridge", "copper", "dagger", "eraser", "fossil"),
)


@dataclass(frozen=True)
class Question:
    """A question on a text.

    Args:
        task: name of the task.
        ids: token ids that follow those of the text.
        expected: strings that the answer should contain.
        tokens: maximum number of tokens of the answer.
    """

    task: str
    ids: list[int]
    expected: list[str]
    tokens: int

    def hits(self, answer: str) -> int:
        """Return the number of expected strings in an answer, as RULER counts them."""
        return sum(each.lower() in answer.lower() for each in self.expected)


@dataclass(frozen=True)
class Haystack:
    """A text of at most the length asked for, with the questions on it.

    Args:
        ids: token ids of the text.
        questions: the questions.
    """

    ids: list[int]
    questions: list[Question]


class TooShort(DataError):
    """A length with too little room for the needles.

    Args:
        kind: kind of the text.
        length: number of tokens.
        least: least number of tokens with room for the needles, a question and its answer.
    """

    def __init__(self, kind: str, length: int, least: int) -> None:
        super().__init__(f"the needles of '{kind}' need {least} tokens, more than {length}")
        self.least = least


class _NoRoom(Exception):  # which `haystack` handles
    """Needles that take more tokens than there is room for; its argument is how many more."""


def haystack(
    kind: str, tokenizer: PreTrainedTokenizerFast, text: str, length: int, seed: Sequence[int]
) -> Haystack:
    """Generate a text that hides needles, and the questions on them.

    Args:
        kind: "filler", "text" or "words", see `KINDS`.
        tokenizer: tokenizer of the model.
        text: real text of at least `length` tokens, for the kinds "text" and "words".
        length: maximum number of tokens, the longest question and answer included.
        seed: seed of the random numbers.

    Raises:
        TooShort: if the length has no room for the needles.
        DataError: if a needle would be cut off: the text is too short, or the tokenizer cuts texts.
    """
    least = length
    while True:
        try:
            hay = _haystack(kind, tokenizer, text, least, seed)
        except _NoRoom as error:
            least += error.args[0]
        else:
            break
    if least > length:
        raise TooShort(kind, length, least)
    return hay


def _haystack(
    kind: str, tokenizer: PreTrainedTokenizerFast, text: str, length: int, seed: Sequence[int]
) -> Haystack:
    def ids(words: str) -> list[int]:
        encoded: list[int] = tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
        return encoded

    first, make, free = special(tokenizer)[0], _MAKERS[kind], _ROOM
    while True:
        room = length - free - len(first)
        written, needles, asked = make(text, room, lambda words: len(ids(words)), np.random.default_rng(seed))
        questions = [_question(ids, *each) for each in asked]
        needed = max(len(each.ids) + each.tokens for each in questions)
        if needed <= free:
            break
        free = needed
    encoded = ids(written)
    read = tokenizer.decode(encoded)
    if lost := [needle for needle in needles if needle not in read]:
        raise DataError(
            f"the tokenizer does not give back {lost[0]!r}, a needle of '{kind}': it cuts texts, or has no "
            "tokens for some words"
        )
    if len(encoded) > room:
        raise DataError(f"a text of {length} tokens for '{kind}' has {len(encoded)} for {room}")
    return Haystack([*first, *encoded], questions)


def _question(
    ids: Callable[[str], list[int]], task: str, question: str, prefix: str, expected: list[str]
) -> Question:
    """Return a question as it follows the text, ending with the beginning of the answer."""
    row = ids(f"\n\nQuestion: {question}\nAnswer: {prefix}")
    return Question(task, row, expected, len(ids(" " + ", ".join(expected))) + SLACK)


_Asked = tuple[str, str, str, list[str]]
"""Task, question, beginning of the answer, and expected strings."""
_Written = tuple[str, list[str], list[_Asked]]
"""Text, needles in it, and questions."""


def _number(rng: np.random.Generator, digits: int) -> str:
    return "".join(map(str, [rng.integers(1, 10), *rng.integers(10, size=digits - 1)]))


def _spread(sentences: list[str], needles: Sequence[str]) -> str:
    """Put needles between sentences, at even depths from the beginning to the end."""
    depths = np.linspace(0, len(sentences), len(needles)).round().astype(int)
    parts, start = [], 0
    for depth, needle in zip(depths, needles, strict=True):
        parts += [*sentences[start:depth], needle]
        start = depth
    return " ".join([*parts, *sentences[start:]])


def _fit(build: Callable[[int], str], most: int, room: int, size: Callable[[str], int]) -> str:
    """Find by bisection the longest text `build(n)`, n up to `most`, of at most `room` tokens.

    Raises:
        _NoRoom: if `build(0)` has more tokens.
    """
    if (needed := size(build(0))) > room:
        raise _NoRoom(needed - room)
    low, high = 0, 1
    while high <= most and size(build(high)) <= room:
        low, high = high, 2 * high
    high = min(high, most + 1)  # the least that is known not to fit, or not to exist
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(build(middle)) <= room else (low, middle)
    return build(low)


def _filler(text: str, room: int, size: Callable[[str], int], rng: np.random.Generator) -> _Written:
    """Passkeys and chains of variables in repeated sentences."""
    boxes = [str(box) for box in rng.permutation(np.arange(10, 100))[:BOXES]]
    keys = [_number(rng, 5) for _ in boxes]
    needles = [f"The pass key of box {box} is {key}." for box, key in zip(boxes, keys, strict=True)]
    chains, letters = [], list("ABCDEFGHJKLMNPQRSTUVWXYZ")
    for _ in range(CHAINS):
        value, names = _number(rng, 5), ["".join(rng.choice(letters, 5)) for _ in range(HOPS + 1)]
        steps = [f"VAR {names[0]} = {value}."]
        steps += [f"VAR {new} = VAR {before}." for before, new in pairwise(names)]
        chains.append((value, names, steps))
    steps = [each for group in zip(*(steps for *_, steps in chains), strict=True) for each in group]
    order = [*needles]  # every step of a chain comes after the one before it
    for index, step in enumerate(steps):
        order.insert(round((index + 1) * (len(order) + 1) / (len(steps) + 1)), step)
    in_order = [step for step in order if step in steps]
    order = [steps.pop(0) if each in in_order else each for each in order]
    filler = _SENTENCE.split(_FILLER)
    begin = "Pass keys of boxes and values of variables are hidden in this text. Remember them."

    def build(count: int) -> str:
        return f"{begin} {_spread([filler[i % len(filler)] for i in range(count)], order)}"

    asked: list[_Asked] = [
        ("passkey", f"What is the pass key of box {box}?", f"The pass key of box {box} is", [key])
        for box, key in zip(boxes, keys, strict=True)
    ]
    asked += [
        (
            "tracking",
            f"Which {HOPS + 1} variables have the value {value}?",
            f"The variables with the value {value} are",
            names,
        )
        for value, names, _ in chains
    ]
    return _fit(build, room, room, size), order, asked


def _real(text: str, room: int, size: Callable[[str], int], rng: np.random.Generator) -> _Written:
    """Numbers of keys between the sentences of a real text, and sentences to complete."""
    sentences = _SENTENCE.split(" ".join(text.split()))
    names = [str(noun) for noun in rng.permutation(_NOUNS)[: KEYS + 1]]
    values = [_number(rng, 7) for _ in range(KEYS + VALUES)]
    pairs = [*zip(names[:KEYS], values, strict=False), *((names[KEYS], value) for value in values[KEYS:])]
    order = [int(i) for i in rng.permutation(len(pairs))]
    needles = [f"One of the special numbers of the {pairs[i][0]} is {pairs[i][1]}." for i in order]
    begin = "Special numbers of things are hidden in the following text. Remember them."

    def build(count: int) -> str:
        return f"{begin} {_spread(sentences[:count], needles)}"

    written = _fit(build, len(sentences), room, size)
    if size(written) < room // 2:
        raise DataError(f"the text has too few tokens for a text of {room}")

    def numbers(task: str, keys: Sequence[str], expected: list[str]) -> _Asked:
        several = len(expected) > 1
        *before, last = (f"the {key}" for key in keys)
        listed = f"{', '.join(before)} and {last}" if before else last
        noun = "special numbers" if several else "special number"
        verb = "are" if several else "is"
        return task, f"What {verb} the {noun} of {listed}?", f"The {noun} of {listed} {verb}", expected

    asked = [numbers("multi-key", [name], [value]) for name, value in pairs[:KEYS]]
    asked.append(numbers("multi-value", [names[KEYS]], values[KEYS:]))
    for start in range(0, KEYS, 4):
        asked.append(numbers("multi-query", names[start : start + 4], values[start : start + 4]))
    whole = [each for each in sentences if each in written and 14 <= len(each.split()) <= 30]
    for i in np.linspace(0, len(whole) - 1, min(SENTENCES, len(whole))).round().astype(int):
        words = whole[i].split()
        half = len(words) // 2
        begun, rest = " ".join(words[:half]), " ".join(words[half : half + 3])
        asked.append(("completion", "Which sentence of the text begins like this?", begun, [rest]))
    return written, needles, asked


def _words(text: str, room: int, size: Callable[[str], int], rng: np.random.Generator) -> _Written:
    """A list of words, of which ten are common."""
    words = sorted(set(re.findall(r"\b[a-z]{4,10}\b", text)))
    if len(words) < 4 * COMMON:
        raise DataError(f"the text has {len(words)} different words of 4 to 10 letters; 'words' needs 40")
    words = [str(word) for word in rng.permutation(words)]
    common, others = words[:COMMON], words[COMMON:]
    # a short text has fewer repetitions, so that it has other words at all
    often = max(SELDOM + 1, min(OFTEN, room // (8 * COMMON)))
    seed = int(rng.integers(2**31))

    def build(count: int) -> str:
        repeated = common * often + others[:count] * SELDOM
        order = np.random.default_rng(seed).permutation(repeated)
        listed = " ".join(f"{i}. {word}" for i, word in enumerate(order, 1))
        return f"Some words are common in this list, others are rare. {listed}"

    written = _fit(build, len(others), room, size)
    if size(written) < 0.8 * room:
        raise DataError(f"the text has too few different words for a list of {room} tokens")
    question = f"Which {COMMON} words are the most common in the list?"
    asked: list[_Asked] = [("common words", question, "The most common words are", common)]
    return written, [], asked


_MAKERS = {"filler": _filler, "text": _real, "words": _words}
