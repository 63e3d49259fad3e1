"""From CoNLL-U files to batches of word ids, tags and positions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from floater.positions import Positions
from floater.structures import trees
from floater.tasks.conllu import Sentence, read_conllu
from floater.tasks.text import DataError
from floater.transformer.outputs import IGNORED

PAD, UNKNOWN = 0, 1
FILE = "vocabulary.json"


def shapes(word: str, suffix: int) -> Iterator[str]:
    """What an unknown word looks like, the most telling first: its kind and its last letters.

    Example:
        >>> list(shapes("Unfriendly", 2))
        ['capital ly', 'capital y', 'capital ']
    """
    if suffix:
        kind = "digit" if any(c.isdigit() for c in word) else "capital" if word[:1].isupper() else "small"
        for length in range(min(suffix, len(word)), -1, -1):
            yield f"{kind} {word[len(word) - length :].lower()}"


class Vocabulary:
    """The words, shapes of unknown words, tags and relations of the training sentences.

    Ids count words from 2, after padding and the unknown word, and then shapes. Relations count from 1; 0 is
    one that was not seen.

    Args:
        words: each has an id of its own.
        shapes: see `shapes`.
        tags: what is predicted.
        relations: labels of the edges of trees.
        suffix: letters at the end of a word that its shape has.

    Example:
        >>> vocabulary = Vocabulary(["the"], ["small ing", "small "], ["DET", "VERB"], ["det"], 3)
        >>> vocabulary.ids(["the", "singing", "cat", "42"])
        [2, 3, 4, 1]
    """

    def __init__(
        self,
        words: Sequence[str],
        shapes: Sequence[str],
        tags: Sequence[str],
        relations: Sequence[str],
        suffix: int,
    ) -> None:
        self.words, self.shapes, self.tags = list(words), list(shapes), list(tags)
        self.relations, self.suffix = list(relations), suffix
        self._word = {word: i for i, word in enumerate(self.words, start=2)}
        self._shape = {shape: i for i, shape in enumerate(self.shapes, start=2 + len(self.words))}
        self._tag = {tag: i for i, tag in enumerate(self.tags)}
        self._relation = {relation: i for i, relation in enumerate(self.relations, start=1)}

    @classmethod
    def of(cls, sentences: Sequence[Sentence], min_count: int, suffix: int) -> Vocabulary:
        """The vocabulary of training sentences.

        Args:
            sentences: with tags and relations.
            min_count: how often a word, or a shape among the rarer words, must be seen.
            suffix: see `shapes`.
        """
        count = Counter(word for sentence in sentences for word in sentence.words)
        known = [word for word, times in count.most_common() if times >= min_count]
        seen: Counter[str] = Counter()
        for word, times in count.items():
            if times < min_count:
                seen.update(dict.fromkeys(shapes(word, suffix), times))
        tags = {tag for sentence in sentences for tag in sentence.tags}
        relations = {relation for sentence in sentences for relation in sentence.relations}
        telling = [shape for shape, times in seen.most_common() if times >= min_count]
        return cls(known, telling, sorted(tags), sorted(relations), suffix)

    def __len__(self) -> int:
        return 2 + len(self.words) + len(self.shapes)

    def __contains__(self, word: str) -> bool:
        return word in self._word

    def ids(self, words: Sequence[str]) -> list[int]:
        """Ids of words; an unknown one has that of the most telling shape that is known."""
        return [self._word.get(word) or self._unknown(word) for word in words]

    def _unknown(self, word: str) -> int:
        return next((self._shape[s] for s in shapes(word, self.suffix) if s in self._shape), UNKNOWN)

    def labels(self, tags: Sequence[str]) -> list[int]:
        """Numbers of tags, -100 for one that is not known."""
        return [self._tag.get(tag, IGNORED) for tag in tags]

    def edges(self, relations: Sequence[str]) -> list[int]:
        """Numbers of relations, 0 for one that is not known."""
        return [self._relation.get(relation, 0) for relation in relations]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the vocabulary into a directory."""
        parts = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / FILE).write_text(json.dumps(parts, indent=0, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Vocabulary:
        """The vocabulary in a directory.

        Raises:
            DataError: if there is none that can be read.
        """
        try:
            return cls(**json.loads((Path(folder) / FILE).read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise DataError(f"{folder} holds no vocabulary that can be read: {error}") from error


def read_sentences(path: str | Path, *, structured: bool) -> list[Sentence]:
    """The sentences of a CoNLL-U file.

    Args:
        path: of the file.
        structured: their trees shall be used, so they must be trees.

    Raises:
        DataError: if the file cannot be read, has no sentence, or one is no tree or has a word without a tag.
    """
    sentences = read_conllu(path)
    if not sentences:
        raise DataError(f"{path} holds no sentence")
    for number, sentence in enumerate(sentences, start=1):
        if "_" in sentence.tags:
            word = sentence.words[sentence.tags.index("_")]
            raise DataError(f"{path}, sentence {number}: {word!r} has no tag (UPOS is _)")
    for number, sentence in enumerate(sentences if structured else (), start=1):
        try:
            trees([sentence.parents])
        except ValueError as error:
            raise DataError(f"{path}, sentence {number}: {str(error).replace('tree 0', 'it', 1)}") from error
    return sentences


class TaggedSentences(Dataset[dict[str, list[int]]]):
    """Encoded sentences; `lengths` are their words.

    Args:
        sentences: of a CoNLL-U file.
        vocabulary: of the training sentences.
        max_tokens: longer sentences are left out; `dropped` counts them.

    Raises:
        DataError: if no sentence is left.
    """

    def __init__(
        self, sentences: Sequence[Sentence], vocabulary: Vocabulary, max_tokens: int | None = None
    ) -> None:
        self._sentences = [s for s in sentences if max_tokens is None or len(s.words) <= max_tokens]
        if not self._sentences:
            raise DataError(f"no sentence is left: all {len(sentences)} have more than {max_tokens} words")
        self.dropped = len(sentences) - len(self._sentences)
        self.lengths = [len(sentence.words) for sentence in self._sentences]
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._sentences)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        sentence = self._sentences[index]
        return {
            "input_ids": self.vocabulary.ids(sentence.words),
            "labels": self.vocabulary.labels(sentence.tags),
            "parents": sentence.parents,
            "relations": self.vocabulary.edges(sentence.relations),
        }

    def extremes(self) -> list[int]:
        """The longest sentence, and the one with the most words under one head."""
        widest = [max(Counter(sentence.parents).values()) for sentence in self._sentences]
        return sorted({self.lengths.index(max(self.lengths)), widest.index(max(widest))})


def collate(examples: Sequence[dict[str, list[int]]], *, structured: bool) -> dict[str, Any]:
    """A batch padded on the right: `input_ids`, `labels`, and where the words stand.

    Args:
        examples: of `TaggedSentences`.
        structured: `positions` from the dependency trees, instead of an `attention_mask`.

    Example:
        >>> go_on = {"input_ids": [5, 6], "labels": [1, 2], "parents": [-1, 0], "relations": [1, 2]}
        >>> stop = {"input_ids": [7], "labels": [1], "parents": [-1], "relations": [1]}
        >>> batch = collate([go_on, stop], structured=True)
        >>> batch["labels"].tolist(), batch["positions"].structure.depth.tolist()
        ([[1, 2], [1, -100]], [[0, 1], [0, 0]])
    """
    batch: dict[str, Any] = {
        "input_ids": _padded(examples, "input_ids", PAD),
        "labels": _padded(examples, "labels", IGNORED),
    }
    if structured:
        batch["positions"] = Positions.tree(
            [example["parents"] for example in examples],
            labels=[example["relations"] for example in examples],
        )
    else:
        batch["attention_mask"] = (batch["input_ids"] != PAD).long()
    return batch


def _padded(examples: Sequence[dict[str, list[int]]], name: str, value: int) -> Tensor:
    rows = [torch.tensor(example[name]) for example in examples]
    return pad_sequence(rows, batch_first=True, padding_value=value)
