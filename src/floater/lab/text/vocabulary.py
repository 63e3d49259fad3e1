"""Word vocabularies: ids of words, of shapes of unknown words, and of labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from floater.errors import DataError
from floater.transformer.outputs import IGNORED

PAD, UNKNOWN = 0, 1
FILE = "vocabulary.json"


def shapes(word: str, suffix: int) -> Iterator[str]:
    """Yield the shapes of an unknown word, its kind and its last letters, the most specific first.

    Args:
        word: the word.
        suffix: maximum number of letters at its end; 0 for no shapes.

    Example:
        >>> list(shapes("Unfriendly", 2))
        ['capital ly', 'capital y', 'capital ']
    """
    if suffix:
        kind = "digit" if any(c.isdigit() for c in word) else "capital" if word[:1].isupper() else "small"
        for length in range(min(suffix, len(word)), -1, -1):
            yield f"{kind} {word[len(word) - length :].lower()}"


@dataclass
class Vocabulary:
    """The words, shapes of unknown words, tags and relations of the training sentences.

    Words have the ids from 2 on, after those of padding and the unknown word; the ids of shapes follow.
    Relations have the ids from 1 on; 0 is an unseen relation.

    Args:
        words: known words.
        shapes: known shapes of unknown words; see the function `shapes`.
        tags: tags, which are predicted.
        relations: labels of the edges of trees.
        suffix: maximum number of letters at the end of a word in its shape.

    Example:
        >>> vocabulary = Vocabulary(["the"], ["small ing", "small "], ["DET", "VERB"], ["det"], 3)
        >>> vocabulary.ids(["the", "singing", "cat", "42"])
        [2, 3, 4, 1]
    """

    words: list[str]
    shapes: list[str]
    tags: list[str]
    relations: list[str]
    suffix: int

    def __post_init__(self) -> None:
        """Number the entries."""
        self._word = {word: i for i, word in enumerate(self.words, start=2)}
        self._shape = {shape: i for i, shape in enumerate(self.shapes, start=2 + len(self.words))}
        self._tag = {tag: i for i, tag in enumerate(self.tags)}
        self._relation = {relation: i for i, relation in enumerate(self.relations, start=1)}

    @classmethod
    def of(
        cls,
        sentences: Sequence[Sequence[str]],
        tags: Iterable[str],
        relations: Iterable[str] = (),
        *,
        min_count: int,
        suffix: int,
    ) -> Vocabulary:
        """Build the vocabulary of training sentences.

        Args:
            sentences: words of each sentence.
            tags: tags of all words, or of all texts.
            relations: relations of all edges.
            min_count: minimum count of a word, or of a shape among the rarer words.
            suffix: maximum number of letters at the end of a word in its shape.
        """
        count = Counter(word for sentence in sentences for word in sentence)
        common = [word for word, times in count.most_common() if times >= min_count]
        seen: Counter[str] = Counter()
        for word, times in count.items():
            if times < min_count:
                seen.update(dict.fromkeys(shapes(word, suffix), times))
        frequent = [shape for shape, times in seen.most_common() if times >= min_count]
        return cls(common, frequent, sorted({*tags}), sorted({*relations}), suffix)

    def __len__(self) -> int:
        return 2 + len(self.words) + len(self.shapes)

    def __contains__(self, word: str) -> bool:
        return word in self._word

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return the ids of words; an unknown word has the id of its most specific known shape."""
        return [self._word.get(word) or self._unknown(word) for word in words]

    def _unknown(self, word: str) -> int:
        return next((self._shape[s] for s in shapes(word, self.suffix) if s in self._shape), UNKNOWN)

    def labels(self, tags: Sequence[str]) -> list[int]:
        """Return the ids of tags, -100 for an unknown one."""
        return [self._tag.get(tag, IGNORED) for tag in tags]

    def edges(self, relations: Sequence[str]) -> list[int]:
        """Return the ids of relations, 0 for an unknown one."""
        return [self._relation.get(relation, 0) for relation in relations]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the vocabulary into a directory."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=0, ensure_ascii=False)
        (Path(folder) / FILE).write_text(text, encoding="utf-8")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Vocabulary:
        """Load the vocabulary in a directory.

        Raises:
            DataError: if the directory contains no readable vocabulary.
        """
        try:
            return cls(**json.loads((Path(folder) / FILE).read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise DataError(f"{folder} holds no vocabulary that can be read: {error}") from error
