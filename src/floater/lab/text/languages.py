"""Language codes as data name them, and the languages whose writing has no spaces between words."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable

CHINESE = frozenset(
    {"zh", "yue", "wuu", "lzh", "hak", "nan", "gan", "hsn", "cdo", "cjy", "mnp", "cpx", "czo"}
)
UNSPACED = CHINESE | {"ja", "th", "lo", "km", "my", "bo", "dz", "shn", "ksw", "nod", "tts", "lcp", "ii"}
"""Languages that are written without spaces between words, or that separate syllables by other marks."""
LONGEST_WORD = 5
"""Mean number of characters between spaces above which text of the scripts below is not split into words."""
_UNSPACED_SCRIPTS = (
    # Thai, Lao, Tibetan, Burmese, Khmer, Tai Le, New Tai Lue, Tai Tham
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"
    # kana, Chinese characters, Yi, Burmese of other languages, Tai Viet, kana of half width
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\ua9e0-\ua9ff"
    "\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9d\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_UNSPACED_LETTERS = re.compile(f"[{_UNSPACED_SCRIPTS}]")
_UNIT = re.compile(rf"[^\W{_UNSPACED_SCRIPTS}]+|[{_UNSPACED_SCRIPTS}]|[^\w\s]")
"""Pattern of a word, a letter of the scripts above or a punctuation mark, in text without combining marks."""


def primary(code: str) -> str:
    """Return the ISO 639-1 code of a language, or its code of three letters if it has no other.

    Args:
        code: code of the language, of any part of ISO 639, with or without a script and a region.

    Example:
        >>> [primary(code) for code in ("zh_CN", "zh-Hans", "cmn", "jpn_Jpan", "ZH", "deu", "german")]
        ['zh', 'zh', 'zh', 'ja', 'zh', 'de', 'german']
    """
    from babel.core import get_global

    first = re.split("[-_]", code.strip().lower())[0]
    return str(get_global("language_aliases").get(first, first)).split("_")[0]


def check_code(code: str) -> None:
    """Refuse what is no code of a language.

    A code of three letters is not looked up, as ISO 639-3 has thousands.

    Args:
        code: as for `primary`.

    Raises:
        ValueError: if its first part has neither three letters nor is a code of two letters.

    Example:
        >>> check_code("zh-Hans")
        >>> check_code("German")
        Traceback (most recent call last):
        ValueError: 'German' is no code of a language, as 'de', 'zh-Hans' or 'yue' are; did you mean 'de'?
    """
    from babel import Locale
    from babel.core import get_global

    names, first = Locale("en").languages, re.split("[-_]", code.strip().lower())[0]
    if re.fullmatch("[a-z]{3}", first) or (
        len(first) == 2 and {first} & {*names, *get_global("language_aliases")}
    ):
        return
    meant = next((f"; did you mean {key!r}?" for key, name in names.items() if name.lower() == first), "")
    raise ValueError(f"{code!r} is no code of a language, as 'de', 'zh-Hans' or 'yue' are{meant}")


def lacks_spaces(lines: Iterable[str]) -> bool:
    """Return whether text is in scripts that do without spaces, and not split into words.

    Example:
        >>> lacks_spaces(["今天天气很好。"]), lacks_spaces(["今天 天气 很 好 。"])
        (True, False)
    """
    text = " ".join(lines)
    letters, words = sum(map(str.isalpha, text)), len(text.split())
    unspaced = len(_UNSPACED_LETTERS.findall(text))
    return 2 * unspaced > letters and sum(not mark.isspace() for mark in text) > LONGEST_WORD * words


def lengths(lines: Iterable[str], token: str | None = None) -> list[int]:
    """Return the numbers of words and punctuation marks of lines.

    A letter of a script without spaces counts by itself. Combining marks and joiners belong to their letter.

    Args:
        lines: lines of text.
        token: regular expression of what counts instead.

    Example:
        >>> lengths(["Guten Tag!", "यह हिन्दी है।", "我喜欢猫。", "ไปกินข้าว"])
        [3, 4, 5, 7]
        >>> lengths(["Guten Tag!"], r"\\S+")
        [2]
    """
    if token is not None:
        return [len(re.findall(token, line)) for line in lines]
    return [len(_UNIT.findall(line.translate(_marks()))) for line in lines]


@functools.cache
def _marks() -> dict[int, None]:
    """Return the table for `str.translate` that deletes combining marks, and joiners between letters.

    The voice marks of kana of half width combine, too, although Unicode calls them letters.
    """
    codes = range(sys.maxunicode + 1)
    marks = {code: None for code in codes if unicodedata.category(chr(code)).startswith("M")}
    return marks | dict.fromkeys((0x200C, 0x200D, 0xFF9E, 0xFF9F))
