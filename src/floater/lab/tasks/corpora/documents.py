"""Labelled documents in folders, one sentence per line."""

from __future__ import annotations

import io
import logging
import lzma
import zipfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from floater.errors import DataError, reason
from floater.lab.tasks.corpora.leftovers import is_leftover, without_leftovers
from floater.lab.tasks.corpora.tables import is_table, read_table
from floater.lab.tasks.corpora.text import decode_lines, most_unpacked, read_lines

logger = logging.getLogger(__name__)
_BROKEN = (
    zipfile.BadZipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    RuntimeError,  # a member is encrypted, or compressed by a method that zipfile does not have
    UnicodeDecodeError,  # of the name of a member
)
"""Errors of a damaged .zip."""


@dataclass(frozen=True)
class Document:
    """A document of sentences.

    Args:
        id: path of the document in the folder.
        label: class of the document.
        sentences: words of each sentence, none of them empty.
    """

    id: str
    label: str
    sentences: list[list[str]]


def is_labelled(source: Path) -> bool:
    """Return whether a directory has documents LABEL/NAME.txt, and is not a data set of Hugging Face."""
    if not source.is_dir() or any(source.rglob("*/*.txt")):
        return source.is_dir()
    return not any(path.is_file() and is_table(path) for path in source.rglob("*"))


def read_documents(
    source: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    labels: Collection[str] | None = None,
    blank: bool = False,
) -> list[Document]:
    """Read documents with one sentence per line, whose words are separated by spaces.

    Args:
        source: directory, or .zip of a directory, with LABEL/NAME.txt for each document; other files, hidden
            ones (see `is_leftover`), and empty lines are skipped. Or a table, see `read_table`.
        columns: names of the columns "text" and "label" of a table.
        labels: valid labels; None for any.
        blank: True to keep the rows of a table without a word, as documents without sentences.

    Returns:
        The documents in the order of their paths; their ids are LABEL/NAME.txt. Those of a table are in the
        order of its rows, without those without a word; an id is the text, so that texts that are equal
        are in the same part of a split. Labels are in Unicode form NFC.

    Raises:
        DataError: if the source cannot be read, unpacks to far more bytes than text does, has no document or
            two with the same id, a document has no word, or a label is not valid.
    """
    name = Path(source)
    if is_table(source) and not is_labelled(name):
        return _table_documents(str(source), columns, labels, blank)
    if columns:
        raise DataError(f"{name} is not a table, so data.columns does not apply")
    try:
        if name.is_dir():
            # a link that leads nowhere is refused when it is read
            present = (path for path in name.rglob("*/*.txt") if path.is_file() or not path.exists())
            text_files = without_leftovers(name, present)
            files = [(str(path), read_lines(path)) for path in text_files]
            names = {path.parent.name for path in text_files}
            empty = (path for path in name.rglob("*") if path.is_dir() and not any(path.iterdir()))
            if missing := {path.name for path in empty if not is_leftover(path.relative_to(name))} - names:
                logger.warning(
                    "%s: folders without a document are not labels: %s", name, ", ".join(sorted(missing))
                )
        else:
            with zipfile.ZipFile(name) as archive:
                texts = (p for p in archive.namelist() if p.endswith(".txt") and "/" in p)
                paths = without_leftovers(name, texts)
                # zipfile reads no more bytes of a member than the archive declares
                most, size = most_unpacked(name.stat().st_size), sum(m.file_size for m in archive.infolist())
                if size > most:
                    raise DataError(f"{name}: it unpacks to {size:,} bytes, too many for a text")
                files = [(p, decode_lines(io.BytesIO(archive.read(p)), p)) for p in paths]
    except (OSError, *_BROKEN) as error:
        raise DataError(f"{name}: cannot be read ({reason(error) or 'its end is missing'})") from error
    documents, seen = [], dict[str, str]()
    for file, lines in files:
        path = "/".join(Path(file).parts[-2:])
        if (before := seen.setdefault(path, file)) != file:
            raise DataError(f"{name}: {before} and {file} would both be {path}; read one folder of labels")
        sentences = [words for line in lines if (words := line.split())]
        if not sentences:
            raise DataError(f"{name}: document {path} has no word")
        documents.append(Document(path, normalize("NFC", path.split("/")[0]), sentences))
    if not documents:
        raise DataError(f"{name}: there is no document LABEL/NAME.txt in it")
    for document in documents:
        if labels is not None and document.label not in labels:
            raise DataError(f"{name}: the label of {document.id} is none of {', '.join(labels)}"[:500])
    return documents


def _table_documents(
    name: str, columns: Mapping[str, str] | None, labels: Collection[str] | None, blank: bool
) -> list[Document]:
    table = read_table(name, ["text", "label"], columns)
    names = table.labels()
    for row, label in enumerate(names):
        if labels is not None and label not in labels:
            raise DataError(f"{table.where(row, 'label')}: '{label}' is none of {', '.join(labels)}"[:500])
    rows = zip(table.texts("text"), names, strict=True)
    every = [
        Document(text, label, [words for line in text.split("\n") if (words := line.split())])
        for text, label in rows
    ]
    documents = [document for document in every if document.sentences]
    if skipped := len(every) - len(documents):
        logger.warning("%s: %s rows without a word are skipped", name, f"{skipped:,}")
    if not documents:
        raise DataError(f"{name}: there is no text in it")
    return every if blank else documents
