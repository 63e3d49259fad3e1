"""From folders of documents to batches of sentences."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from floater.tasks.tagging.data import PAD, Vocabulary
from floater.tasks.text import DataError, decode_lines, read_lines


@dataclass(frozen=True)
class Document:
    """A document of sentences.

    Args:
        id: its path in the folder.
        label: what it is.
        sentences: the words of each; none is empty.
    """

    id: str
    label: str
    sentences: list[list[str]]


def read_documents(source: str | Path) -> list[Document]:
    """Read documents, a sentence a line, its words between spaces.

    Args:
        source: a directory, or a .zip of one, with LABEL/NAME.txt for each document; other files in it are
            not read, nor are empty lines.

    Returns:
        The documents in the order of their paths; their ids are LABEL/NAME.txt.

    Raises:
        DataError: if it cannot be read, holds fewer than two labels or two documents of one id, or a document
            has no word.
    """
    name = Path(source)
    try:
        if name.is_dir():
            files = [(str(path), read_lines(path)) for path in sorted(name.rglob("*/*.txt"))]
        else:
            with zipfile.ZipFile(name) as archive:
                paths = sorted(p for p in archive.namelist() if p.endswith(".txt") and "/" in p)
                files = [(p, decode_lines(io.BytesIO(archive.read(p)), p)) for p in paths]
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:  # the last if it is encrypted
        raise DataError(f"{name}: cannot be read ({error})") from error
    found, seen = [], dict[str, str]()
    for file, of_file in files:
        path = "/".join(Path(file).parts[-2:])
        if (before := seen.setdefault(path, file)) != file:
            raise DataError(f"{name}: {before} and {file} would both be {path}; read one folder of labels")
        sentences = [words for line in of_file if (words := line.split())]
        if not sentences:
            raise DataError(f"{name}: document {path} has no word")
        found.append(Document(path, path.split("/")[0], sentences))
    if len({document.label for document in found}) < 2:
        raise DataError(f"{name}: {len(found)} documents LABEL/NAME.txt, of fewer than two labels")
    return found


def vocabulary_of(documents: Sequence[Document], min_count: int) -> Vocabulary:
    """The words that are seen so often, and the labels."""
    count = Counter(word for document in documents for words in document.sentences for word in words)
    known = [word for word, times in count.most_common() if times >= min_count]
    return Vocabulary(known, [], sorted({document.label for document in documents}), [], 0)


class Documents(Dataset[dict[str, Any]]):
    """Encoded documents; `lengths` are their words, `counts` their sentences.

    Args:
        documents: with labels that the vocabulary knows.
        vocabulary: of the training documents.
        max_words: a longer sentence becomes several.

    Raises:
        DataError: if there is no document, or a label is not known.
    """

    def __init__(self, documents: Sequence[Document], vocabulary: Vocabulary, max_words: int) -> None:
        if not documents:
            raise DataError("there is no document in this part of the data")
        for document in documents:
            if document.label not in vocabulary.tags:
                valid = ", ".join(vocabulary.tags)
                raise DataError(f"document {document.id}: label '{document.label}'; there are: {valid}")
        self._documents, self._vocabulary, self._most = documents, vocabulary, max_words
        self.lengths = [sum(map(len, document.sentences)) for document in documents]
        self.counts = [
            sum(-(-len(words) // max_words) for words in document.sentences) for document in documents
        ]

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> dict[str, Any]:
        document, most = self._documents[index], self._most
        ids = [self._vocabulary.ids(words) for words in document.sentences]
        cut = [words[i : i + most] for words in ids for i in range(0, len(words), most)]
        return {"sentences": cut, "label": self._vocabulary.labels([document.label])[0]}


def collate(examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """A batch: `words` (N, W) of all sentences, `sentences` (batch, S) their rows, -1 for none, and `labels`.

    Example:
        >>> batch = collate([{"sentences": [[5, 6], [7]], "label": 1}, {"sentences": [[8]], "label": 0}])
        >>> batch["words"].tolist(), batch["sentences"].tolist()
        ([[5, 6], [7, 0], [8, 0]], [[0, 1], [2, -1]])
    """
    flat = [torch.tensor(words) for example in examples for words in example["sentences"]]
    counts = [len(example["sentences"]) for example in examples]
    rows = torch.split(torch.arange(len(flat)), counts)
    return {
        "words": pad_sequence(flat, batch_first=True, padding_value=PAD),
        "sentences": pad_sequence(list(rows), batch_first=True, padding_value=-1),
        "labels": torch.tensor([example["label"] for example in examples]),
    }
