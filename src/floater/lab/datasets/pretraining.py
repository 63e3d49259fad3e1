"""Preparation of Wikipedia and BookCorpus for pretraining, close to Ke et al. 2021 (TUPE), section 4.1.

Their code is `preprocess/pretrain` of guolinke/TUPE@4c64ff7.

Their data, a dump of Wikipedia and two crawls of books, are not published. Here Wikipedia is the dump of
November 2023, without markup, and BookCorpus is as once published: one sentence per line, already lower-cased
and tokenised, without boundaries between books. Sentences are split by the rules of Moses instead
of spaCy, and before lower-casing, as the rules know "Mr." and not "mr.". Their filter by the frequencies of
words is removed, and so are their placeholders for addresses.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from sacremoses.corpus import NonbreakingPrefixes

from floater.errors import DataError
from floater.lab.datasets.archives import unpack
from floater.lab.datasets.workers import mapped
from floater.lab.tasks.corpora.leftovers import without_leftovers
from floater.lab.text.tupe import normal, tokens

logger = logging.getLogger(__name__)
EVERY = 200
"""Every 200th article is for validation; their code holds out every 200th line."""
SHORTEST, LETTERS = 50, 0.7
"""Minimum number of characters of a paragraph, of letters in it, and minimum share of letters."""
_LONGEST = 1_000_000
_MARKS = {"\\": 0.05, "|": 0.05}
"""Characters of formulas and tables, and the largest share of a paragraph that they may have."""
_END = re.compile(
    r"""(?P<marks>[.?!]+)(?P<close>['")\]}%”’»]*)(?P<space>\s+)(?=['"(\[{“‘«]*(?P<next>[A-Z0-9]))"""
)
_INITIALS = re.compile(r"(\w\.)+\w|[A-Z]")


def wiki_books(files: dict[str, Path], scratch: Path, output: Path, processes: int) -> None:
    """Write train.txt and valid.txt: one sentence per line, and a blank line between documents.

    Raises:
        DataError: if a file is not valid.
    """
    seen: set[bytes] = set()
    count = Counter[str]()
    with (
        (output / "train.txt").open("w", encoding="utf-8", newline="\n") as train,
        (output / "valid.txt").open("w", encoding="utf-8", newline="\n") as valid,
    ):
        texts = itertools.chain.from_iterable(map(_articles, _ending(files, ".parquet")))
        fresh = (_without(text, seen) for text in texts)
        for number, lines in enumerate(mapped(document, fresh, processes), start=1):
            if lines:
                part = valid if number % EVERY == 0 else train
                part.write("\n".join(lines) + "\n\n")
                count[part.name] += len(lines)
        for archive in _ending(files, ".bz2"):
            folder = unpack(archive, scratch)
            for path in without_leftovers(folder, folder.rglob("*.txt")):
                with path.open(encoding="utf-8", newline="\n") as file:
                    for line in mapped(plain, file, processes):
                        if line:
                            train.write(line + "\n")
                            count[train.name] += 1
                train.write("\n")
    for name, number in count.items():
        logger.info("%s: %s sentences", Path(name).name, f"{number:,}")


def is_text(paragraph: str) -> bool:
    """Return whether a paragraph is text, not a title, a formula or a table.

    Example:
        >>> is_text("A sentence of words, which has letters enough to be one, is text."), is_text("| 1 | 2 |")
        (True, False)
    """
    length = len(paragraph)
    if not SHORTEST <= length <= _LONGEST or paragraph.startswith("|"):
        return False
    letters = sum(character in string.ascii_letters for character in paragraph)
    marks = all(paragraph.count(mark) <= share * length for mark, share in _MARKS.items())
    return letters >= SHORTEST and letters >= LETTERS * length and marks


def document(text: str) -> list[str]:
    """Return the sentences of an article, normalised, lower-cased and tokenised.

    Example:
        >>> document("Life\\nMr. Smith went to Washington on a train, a long… journey. Nobody was there.")
        ['mr . smith went to washington on a train , a long . . . journey .', 'nobody was there .']
    """
    sentences = []
    for paragraph in text.split("\n"):
        if is_text(clean := normal(paragraph)):
            sentences += [line for part in split(clean) if (line := sentence(part))]
    return sentences


def split(paragraph: str) -> list[str]:
    """Split a paragraph into sentences by the rules of Moses, `split-sentences.perl`.

    A sentence ends with punctuation marks and closing quotes or brackets, if a capital or a digit follows,
    perhaps after opening quotes or brackets. A full stop does not end it after an abbreviation of Moses, an
    initial, or letters with full stops between.

    Example:
        >>> split('Mr. J. Smith left the U.S. Army. "Why?" No. 5 asked. It was 5 p.m. then.')
        ['Mr. J. Smith left the U.S. Army.', '"Why?"', 'No. 5 asked.', 'It was 5 p.m. then.']
    """
    sentences, start = [], 0
    for end in _END.finditer(paragraph):
        word = paragraph[start : end.start()].rpartition(" ")[2].lstrip("\"'([{“‘")
        stop = end["marks"] == "." and not end["close"]
        before_number = end["next"].isdigit() and word in _abbreviations()[1]
        if stop and (word in _abbreviations()[0] or before_number or _INITIALS.fullmatch(word)):
            continue
        sentences.append(paragraph[start : end.end("close")])
        start = end.end("space")
    return [*sentences, paragraph[start:]]


def sentence(text: str) -> str:
    """Lower-case and tokenise a sentence; one without a letter or a digit becomes empty.

    Example:
        >>> sentence("It's well-known."), sentence(" * * * ")
        ("it 's well - known .", '')
    """
    return _worded(tokens(text))


def plain(text: str) -> str:
    """Lower-case a tokenised sentence; one without a letter or a digit becomes empty.

    Example:
        >>> plain("It 's  well-known ."), plain(" * * * ")
        ("it 's well - known .", '')
    """
    return _worded(" ".join(normal(text).lower().replace("-", " - ").split()))


def _worded(text: str) -> str:
    return text if any(character.isalnum() for character in text) else ""


def _without(text: str, seen: set[bytes]) -> str:
    """Remove the paragraphs that occurred before from an article."""
    kept = []
    for paragraph in text.split("\n"):
        digest = hashlib.blake2b(paragraph.strip().lower().encode(), digest_size=8).digest()
        if digest not in seen:
            seen.add(digest)
            kept.append(paragraph)
    return "\n".join(kept)


def _articles(path: Path) -> Iterator[str]:
    import pyarrow
    from pyarrow import parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=1000, columns=["text"]):
            yield from batch.column("text").to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path.name}: not a parquet file with a column 'text' ({error})") from error


def _ending(files: dict[str, Path], suffix: str) -> list[Path]:
    return [path for name, path in sorted(files.items()) if name.endswith(suffix)]


@functools.cache
def _abbreviations() -> tuple[frozenset[str], frozenset[str]]:
    """Return the abbreviations of Moses, and those that count only before a number."""
    words = [line.partition("#NUMERIC_ONLY#") for line in NonbreakingPrefixes().words("en")]
    always, before_numbers = (
        frozenset(name.strip() for name, mark, _ in words if bool(mark) == only) for only in (False, True)
    )
    return always, before_numbers
