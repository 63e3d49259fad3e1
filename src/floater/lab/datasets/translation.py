"""Preparation of WMT14 as by Liu et al. 2020, after Gehring et al. 2017.

It repeats `prepare-wmt14en2de.sh --icml17` and `prepare-wmt14en2fr.sh` of their repository
(xuanqing94/FLOATER@d788b5e).
"""

from __future__ import annotations

import functools
import gzip
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import regex
from transformers import PreTrainedTokenizerFast

from floater.errors import DataError
from floater.lab.datasets.archives import unpack
from floater.lab.datasets.workers import mapped
from floater.lab.text import moses
from floater.lab.text.bpe import encode, train_bpe

logger = logging.getLogger(__name__)
MERGES = 40_000
RATIO, LONGEST = 1.5, 250
"""Greatest ratio of the lengths of a pair's sides, and greatest length of a side, in BPE tokens."""
VOCABULARY = "vocabulary"
_ENCODED = 50_000
_SEGMENT = re.compile(r"<seg[^>]*>\s*(.*?)\s*</seg>")


def wmt14_en_de(files: dict[str, Path], scratch: Path, output: Path, processes: int) -> None:
    """Prepare English-German; every 100th line is for validation."""
    corpora = ("training/europarl-v7.de-en", "commoncrawl.de-en", "training/news-commentary-v9.de-en")
    _wmt14(files, scratch, output, processes, target="de", test="deen", corpora=corpora, every=100)


def wmt14_en_fr(files: dict[str, Path], scratch: Path, output: Path, processes: int) -> None:
    """Prepare English-French; every 1,333rd line is for validation."""
    corpora = (
        *("training/europarl-v7.fr-en", "commoncrawl.fr-en", "un/undoc.2000.fr-en"),
        *("training/news-commentary-v9.fr-en", "giga-fren.release2.fixed"),
    )
    _wmt14(files, scratch, output, processes, target="fr", test="fren", corpora=corpora, every=1333)


def _wmt14(
    files: dict[str, Path],
    scratch: Path,
    output: Path,
    processes: int,
    *,
    target: str,
    test: str,
    corpora: Sequence[str],
    every: int,
) -> None:
    """Tokenise the corpora, divide them, learn a joint BPE, and exclude pairs by their lengths.

    The output is train and valid in Moses tokens, newstest2014 in plain text, and the BPE of 40,000 merges.
    As in the script, words are separated by spaces; the merges are over bytes, there over characters.
    """
    for archive in files.values():
        unpack(archive, scratch)
    languages = ("en", target)
    for side, language in zip(("src", "ref"), languages, strict=True):
        segments = _segments(scratch / f"test-full/newstest2014-{test}-{side}.{language}.sgm")
        plain = "".join(f"{line}\n" for line in segments)
        (output / f"newstest2014.{language}").write_text(plain, encoding="utf-8", newline="\n")
    for language in languages:
        lines = itertools.chain.from_iterable(_lines(scratch / f"{name}.{language}") for name in corpora)
        tokens = mapped(functools.partial(tokenised, language=language), lines, processes)
        with (
            (scratch / f"train.{language}").open("w", encoding="utf-8", newline="\n") as train,
            (scratch / f"valid.{language}").open("w", encoding="utf-8", newline="\n") as valid,
        ):
            for number, line in enumerate(tokens, start=1):
                (train if number % every else valid).write(line + "\n")
    joint = itertools.chain.from_iterable(_lines(scratch / f"train.{language}") for language in languages)
    tokenizer = train_bpe(joint, MERGES + 256 + 3, pretokenized=True)
    tokenizer.save_pretrained(output / VOCABULARY)
    for part in ("train", "valid"):
        sides = [scratch / f"{part}.{language}" for language in languages]
        _clean(sides, [output / path.name for path in sides], tokenizer)


def tokenised(line: str, language: str) -> str:
    """Normalise the punctuation of a line, replace unprintable characters by spaces, and tokenise it.

    Example:
        >>> tokenised("It’s a\\u200bwell-known trap.", "en")
        'It &apos;s a well @-@ known trap .'
    """
    normalise, tokenise = _moses(language)
    return tokenise(regex.sub(r"\p{C}", " ", normalise(line)))


@functools.cache
def _moses(language: str) -> tuple[moses.Text, moses.Text]:
    return moses.normaliser(language), moses.tokenizer(language)


def fits(source: int, target: int) -> bool:
    """Return whether a pair with these numbers of BPE tokens is kept.

    Example:
        >>> fits(2, 3), fits(2, 4), fits(0, 0), fits(250, 251)
        (True, False, False, False)
    """
    low, high = sorted((source, target))
    return low >= 1 and high <= LONGEST and high <= RATIO * low


def _clean(sides: Sequence[Path], to: Sequence[Path], tokenizer: PreTrainedTokenizerFast) -> None:
    pairs = _aligned(*sides)
    read = kept = 0
    with (
        to[0].open("w", encoding="utf-8", newline="\n") as source,
        to[1].open("w", encoding="utf-8", newline="\n") as target,
    ):
        while some := list(itertools.islice(pairs, _ENCODED)):
            ends = 1  # of each encoding
            lengths = [
                [len(row) - ends for row in encode(tokenizer, side)] for side in zip(*some, strict=True)
            ]
            for pair, *length in zip(some, *lengths, strict=True):
                if fits(*length):
                    source.write(pair[0] + "\n")
                    target.write(pair[1] + "\n")
                    kept += 1
            read += len(some)
    logger.info("%s: %s of %s pairs are kept", to[0].stem, f"{kept:,}", f"{read:,}")


def _aligned(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    for pair in itertools.zip_longest(_lines(source), _lines(target)):
        if None in pair:
            raise DataError(f"{source.name} and {target.name} have different numbers of lines")
        yield pair


def _lines(path: Path) -> Iterator[str]:
    packed = path.with_name(f"{path.name}.gz")
    try:
        with gzip.open(packed, "rb") if packed.is_file() else path.open("rb") as file:
            for line in file:  # ends with \n alone, so that two files stay aligned
                yield line.decode("utf-8").rstrip("\r\n")
    except FileNotFoundError:
        raise DataError(f"{path.name} is in none of the archives") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name}: not UTF-8 ({error.reason})") from error


def _segments(path: Path) -> list[str]:
    matches = [_SEGMENT.search(line) for line in _lines(path)]
    texts = [" ".join(match[1].split()) for match in matches if match]
    if not texts:
        raise DataError(f"{path.name} has no segment")
    return texts
