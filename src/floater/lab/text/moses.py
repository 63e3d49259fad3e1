"""Moses: the tokenizer and detokenizer of the papers on translation, by `sacremoses`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from floater.lab.text.languages import UNSPACED, primary

Text = Callable[[str], str]
_BESIDE_WIDE = re.compile(r" *([\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]) *")
"""Pattern of a full-width punctuation mark, which Chinese text has no spaces beside."""


def normaliser(language: str) -> Text:
    """Return a function that normalises the punctuation of a language.

    Args:
        language: code of the language, as "de" or "de-AT".

    Raises:
        ValueError: Moses has no rules for the language.

    Example:
        >>> normaliser("en")("It's a “trap” .")
        'It\\'s a "trap" .'
    """
    language = _rules(language)
    # perl_parity: the Perl script is the standard; without it sacremoses differs in some quotation marks.
    clean: Text = MosesPunctNormalizer(lang=language, perl_parity=True).normalize
    return clean


def tokenizer(language: str, *, escape: bool = True, dash_splits: bool = True) -> Text:
    """Return the tokenizer of a language.

    Args:
        language: code of the language, as "de" or "de-AT".
        escape: True to write &, <, >, quotes, brackets and bars as entities.
        dash_splits: True to split words at dashes (option `-a` of the script).

    Returns:
        A function from a plain sentence to its tokens, separated by single spaces.

    Raises:
        ValueError: Moses has no rules for the language.

    Example:
        >>> tokenizer("en")("It's a well-known trap.")
        'It &apos;s a well @-@ known trap .'
    """
    return functools.partial(
        MosesTokenizer(lang=_rules(language)).tokenize,
        aggressive_dash_splits=dash_splits,
        return_str=True,
        escape=escape,
    )


def detokenizer(language: str) -> Text:
    """Return a function that joins the tokens of a sentence, including entities and split dashes.

    Args:
        language: code of the language, as "de" or "de-AT".

    Raises:
        ValueError: Moses has no rules for the language.

    Example:
        >>> detokenizer("en")("It &apos;s a well @-@ known trap .")
        "It's a well-known trap."
        >>> detokenizer("zh")("我用 Python 3 写了 2 个程序 ， 很好 。")
        '我用 Python 3 写了 2 个程序，很好。'
    """
    join = MosesDetokenizer(lang=_rules(language)).detokenize
    if primary(language) in UNSPACED:
        return lambda tokens: _BESIDE_WIDE.sub(r"\1", str(join(tokens.split())))
    return lambda tokens: str(join(tokens.split()))


def _rules(language: str) -> str:
    """Return the code by which Moses has the rules of a language.

    Raises:
        ValueError: Moses has no rules for the language.
    """
    # sacremoses uses the English rules for an unknown language, without a warning.
    supported = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if (code := primary(language)) not in supported:
        raise ValueError(f"no Moses rules for language {language!r}; known: {', '.join(supported)}")
    return code
