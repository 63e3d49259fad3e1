"""Labelled documents in folders, one sentence per line."""

from __future__ import annotations

import io
import logging
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from floater.errors import DataError, reason
from floater.lab.tasks.corpora.leftovers import is_leftover, without_leftovers
from floater.lab.tasks.corpora.text import decode_lines, most_unpacked, read_lines

logger = logging.getLogger(__name__)


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


def read_documents(source: str | Path) -> list[Document]:
    """Read documents with one sentence per line, whose words are separated by spaces.

    Args:
        source: directory, or .zip of a directory, with LABEL/NAME.txt for each document; other files, hidden
            ones (see `is_leftover`), and empty lines are skipped.

    Returns:
        The documents in the order of their paths; their ids are LABEL/NAME.txt.

    Raises:
        DataError: if the source cannot be read, unpacks to far more bytes than text does, contains fewer than
            two labels or two documents with the same id, or a document has no word.
    """
    name = Path(source)
    try:
        if name.is_dir():
            text_files = without_leftovers(name, (path for path in name.rglob("*/*.txt") if path.is_file()))
            files = [(str(path), read_lines(path)) for path in text_files]
            labels = {path.parent.name for path in text_files}
            empty = (path for path in name.rglob("*") if path.is_dir() and not any(path.iterdir()))
            if missing := {path.name for path in empty if not is_leftover(path.relative_to(name))} - labels:
                logger.warning(
                    "%s: folders without a document are no label: %s", name, ", ".join(sorted(missing))
                )
        else:
            with zipfile.ZipFile(name) as archive:
                texts = (p for p in archive.namelist() if p.endswith(".txt") and "/" in p)
                paths = without_leftovers(name, texts)
                # zipfile reads no more bytes of a member than the archive declares
                most, size = most_unpacked(name.stat().st_size), sum(m.file_size for m in archive.infolist())
                if size > most:
                    raise DataError(f"{name}: it unpacks to {size:,} bytes, which is no text of its size")
                files = [(p, decode_lines(io.BytesIO(archive.read(p)), p)) for p in paths]
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:  # the last if encrypted
        raise DataError(f"{name}: cannot be read ({reason(error)})") from error
    documents, seen = [], dict[str, str]()
    for file, lines in files:
        path = "/".join(Path(file).parts[-2:])
        if (before := seen.setdefault(path, file)) != file:
            raise DataError(f"{name}: {before} and {file} would both be {path}; read one folder of labels")
        sentences = [words for line in lines if (words := line.split())]
        if not sentences:
            raise DataError(f"{name}: document {path} has no word")
        documents.append(Document(path, path.split("/")[0], sentences))
    if len({document.label for document in documents}) < 2:
        raise DataError(f"{name}: {len(documents)} documents LABEL/NAME.txt, of fewer than two labels")
    return documents
