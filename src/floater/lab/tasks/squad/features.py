"""Windows of a question and a part of its context: spans in tokens, and answers extracted from logits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.tasks.corpora.squad import Question
from floater.lab.tasks.finetuning.features import AT_ONCE, LABEL, Example, Features, truncated
from floater.lab.text.ragged import Records


class Window(NamedTuple):
    """A part of a context in the model's input.

    Args:
        question: index of the question.
        offsets: start and end of each token in the context, in characters, (T, 2); (-1, -1) for other tokens.
        null: index of the token whose span means no answer.
    """

    question: int
    offsets: np.ndarray
    null: int


@dataclass
class Windows(Features):
    """Encoded windows, and their questions and offsets."""

    windows: list[Window] = field(default_factory=list)

    @property
    def whole(self) -> set[int]:
        """Return the indices of the questions whose answer is completely in a window with labels."""
        pairs = zip(self.rows.column(LABEL), self.windows, strict=True)
        return {window.question for (start, _), window in pairs if start != window.null}


def windows(
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[Question],
    *,
    max_length: int,
    stride: int,
    max_question: int,
    labelled: bool = False,
) -> Windows:
    """Encode questions, each with overlapping parts of its context.

    The label of a window that contains the whole first answer is the answer's first and last token; that of
    any other window is the token that means no answer (Devlin et al. 2019, section 4.3).

    Args:
        tokenizer: tokenizer of the checkpoint.
        questions: questions to encode; with labels, only questions whose answer is at its stated offset.
        max_length: maximum number of tokens of a window, the question included.
        stride: number of tokens that two consecutive windows share.
        max_question: maximum number of tokens of a question; `cut` is the number of truncated questions.
        labelled: True to add labels.

    Raises:
        DataError: if stride and question leave no room for a context.
    """
    asked, cut = truncated(tokenizer, [question.question.strip() for question in questions], max_question)
    special = tokenizer.num_special_tokens_to_add(pair=True)
    longest = max((len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in asked), default=0)
    if max_length - special - longest <= stride:
        raise DataError(
            f"data.max_length {max_length} has no room for a question of data.max_question tokens, "
            f"{max_question}, and more of the context than data.stride, {stride}"
        )
    tokenizer.padding_side = "right"
    encoded_windows: list[Window] = []

    def rows() -> Iterator[Example]:
        for start in range(0, len(asked), AT_ONCE):
            part = questions[start : start + AT_ONCE]
            encoded = tokenizer(
                asked[start : start + AT_ONCE],
                [question.context for question in part],
                truncation="only_second",
                max_length=max_length,
                stride=stride,
                return_overflowing_tokens=True,
            )
            numbers = encoded.pop("overflow_to_sample_mapping")
            for i, (number, window) in enumerate(zip(numbers, encoded.encodings or (), strict=True)):
                row: Example = {name: encoded[name][i] for name in encoded}
                context = np.array([sequence == 1 for sequence in window.sequence_ids])
                offsets = np.where(context[:, None], np.array(window.offsets, np.int32), np.int32(-1))
                ids = row["input_ids"]
                null = ids.index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids else 0
                encoded_windows.append(Window(start + number, offsets, null))
                yield row | ({LABEL: _span(part[number], encoded_windows[-1])} if labelled else {})

    return Windows(Records.of(rows()), questions, cut, "data.max_question", windows=encoded_windows)


def read_answers(
    windows: Windows, logits: Sequence[np.ndarray], questions: Sequence[Question], max_tokens: int
) -> tuple[dict[str, str], dict[str, float]]:
    """Return the best span of each question, and the score of no answer relative to it.

    The score of a span is the sum of its logits. The score of no answer is the lowest such sum of the
    windows' null tokens. A span is within one window.

    Args:
        windows: encoded windows.
        logits: logits of start and end, (2, T), of each window.
        questions: questions of the windows.
        max_tokens: maximum number of tokens of an answer.

    Returns:
        By id, the text of the best span, and the score of no answer minus that of the span.
    """
    best: dict[int, tuple[float, str]] = defaultdict(lambda: (-np.inf, ""))
    null: dict[int, float] = defaultdict(lambda: np.inf)
    for window, (start, end) in zip(windows.windows, logits, strict=True):
        number, context = window.question, questions[window.question].context
        null[number] = min(null[number], float(start[window.null] + end[window.null]))
        tokens = np.flatnonzero(window.offsets[:, 0] >= 0)
        if not len(tokens):
            continue  # a context without a token has no span
        apart = tokens[None, :] - tokens[:, None]
        sums = start[tokens][:, None] + end[tokens][None, :]
        sums[(apart < 0) | (apart >= max_tokens)] = -np.inf
        i, j = np.unravel_index(sums.argmax(), sums.shape)
        if sums[i, j] > best[number][0]:
            text = context[window.offsets[tokens[i], 0] : window.offsets[tokens[j], 1]]
            best[number] = float(sums[i, j]), text.strip()
    return (
        {question.id: best[i][1] for i, question in enumerate(questions)},
        {question.id: null[i] - best[i][0] for i, question in enumerate(questions)},
    )


def with_threshold(
    texts: Mapping[str, str], no_answer: Mapping[str, float], threshold: float | None
) -> dict[str, str]:
    """Return answers, empty where the score of no answer exceeds a threshold; None always answers.

    Example:
        >>> with_threshold({"a": "Rome", "b": "Bonn"}, {"a": 0.5, "b": -0.5}, 0.0)
        {'a': '', 'b': 'Bonn'}
    """
    if threshold is None:
        return dict(texts)
    return {i: "" if no_answer[i] > threshold else text for i, text in texts.items()}


def _span(question: Question, window: Window) -> list[int]:
    """Return the first and last token of the answer, or the null token twice."""
    nothing = [window.null, window.null]
    if question.start is None:
        return nothing
    answer = question.answers[0]  # spaces around it are not part of a token
    low = question.start + len(answer) - len(answer.lstrip())
    high = question.start + len(answer.rstrip())
    starts, ends = window.offsets.T
    inside = np.flatnonzero((starts >= 0) & (ends > low) & (starts < high) & (ends > starts))
    if not len(inside) or starts[inside[0]] > low or ends[inside[-1]] < high:
        return nothing
    return [int(inside[0]), int(inside[-1])]
