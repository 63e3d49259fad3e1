"""Moses: the tokenizer and detokenizer of the papers on translation, by `sacremoses`."""

from __future__ import annotations

import functools
from collections.abc import Callable

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

Text = Callable[[str], str]


def normaliser(language: str) -> Text:
    """Return a function that normalises the punctuation of a language.

    Args:
        language: ISO 639-1 code of the language.

    Raises:
        ValueError: Moses has no rules for the language.

    Example:
        >>> normaliser("en")("It's a “trap” .")
        'It\\'s a "trap" .'
    """
    _check(language)
    # perl_parity: the Perl script is the standard; without it sacremoses differs in some quotation marks.
    clean: Text = MosesPunctNormalizer(lang=language, perl_parity=True).normalize
    return clean


def tokenizer(language: str, *, escape: bool = True) -> Text:
    """Return the tokenizer of a language, with aggressive dash splits (option `-a`).

    Args:
        language: ISO 639-1 code of the language.
        escape: True to write &, <, >, quotes, brackets and bars as entities.

    Returns:
        A function from a plain sentence to its tokens, separated by single spaces.

    Raises:
        ValueError: Moses has no rules for the language.

    Example:
        >>> tokenizer("en")("It's a well-known trap.")
        'It &apos;s a well @-@ known trap .'
    """
    _check(language)
    return functools.partial(
        MosesTokenizer(lang=language).tokenize, aggressive_dash_splits=True, return_str=True, escape=escape
    )


def detokenizer(language: str) -> Text:
    """Return a function that joins the tokens of a sentence, including entities and split dashes.

    Args:
        language: ISO 639-1 code of the language.

    Raises:
        ValueError: Moses has no rules for the language.

    Example:
        >>> detokenizer("en")("It &apos;s a well @-@ known trap .")
        "It's a well-known trap."
    """
    _check(language)
    join = MosesDetokenizer(lang=language).detokenize
    return lambda tokens: str(join(tokens.split()))


def _check(language: str) -> None:
    # sacremoses uses the English rules for an unknown language, without a warning.
    known = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if language not in known:
        raise ValueError(f"no Moses rules for language {language!r}; known: {', '.join(known)}")
