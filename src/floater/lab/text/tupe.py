"""Sentences as Ke et al. 2021 (TUPE) prepare them, for pretraining and for GLUE alike.

The steps are those of `preprocess/pretrain` and `preprocess/glue` of guolinke/TUPE@4c64ff7, without their
placeholders for addresses and names of files.
"""

from __future__ import annotations

import functools
import re
import string

from floater.lab.text import moses

_JOINED = (("<<", "«"), (">>", "»"), (",,", ","), (",.", "."))
_DOTS, _ASTERISK = re.compile(r"\.{4,}"), re.compile(r" \*(?=\S)")
_MARKS = re.escape(string.punctuation)
_WORD = re.compile(rf"([{_MARKS}]*)(.*?)([{_MARKS}]*)", re.DOTALL)
"""Pattern of a word: punctuation before it, the word, punctuation after it."""


def normal(text: str) -> str:
    """Normalise punctuation and spaces; words and case stay.

    Example:
        >>> normal("It’s  a trap,, *he said.....")
        "It's a trap, he said..."
    """
    text = _DOTS.sub("...", " ".join(text.split()))
    for marks, mark in _JOINED:
        text = text.replace(marks, mark)
    normalise, _ = _moses()
    return " ".join(normalise(_ASTERISK.sub(" ", text)).split())


def tokens(text: str) -> str:
    """Return the tokens of a text in lower case, between single spaces.

    Punctuation at either end of a word is a token for each mark, and so is a hyphen; Moses tokenises the
    rest.

    Example:
        >>> tokens("It’s a well-known (U.S.) trap...")
        "it 's a well - known ( u.s . ) trap . . ."
    """
    words = normal(text).lower().replace("\\", " ").replace("...", " ... ").replace("..", " .. ").split()
    apart = " ".join(" ".join(_apart(word)) for word in words)
    _, tokenise = _moses()
    return tokenise(apart.replace("-", " - "))


def _apart(word: str) -> list[str]:
    """Return a word without the punctuation at its ends, between these marks, one by one."""
    match = _WORD.fullmatch(word)
    assert match is not None
    before, inner, after = match.groups()
    return [*before, *([inner] if inner else []), *after]


@functools.cache
def _moses() -> tuple[moses.Text, moses.Text]:
    return moses.normaliser("en"), moses.tokenizer("en", escape=False, dash_splits=False)
