"""Lengths of lines in words and punctuation marks."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.tasks.corpora import cldr
from floater.lab.text.languages import lengths

LATIN = st.characters(max_codepoint=0x24F, categories=("L", "N", "P", "S", "Zs"))


@given(st.text(LATIN))
def test_latin_text_counts_as_in_the_built_in_corpus(text: str) -> None:
    assert lengths([text]) == [len(cldr.tokens(text))]


@given(st.text(LATIN))
def test_accents_count_with_their_letter(text: str) -> None:
    letters = "".join(letter for letter in text if letter.isalpha() or letter.isspace())
    assert lengths([unicodedata.normalize("NFD", letters)]) == lengths([letters])


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("कृपया हिन्दी में लिखिए।", 5),
        ("கணினி, தமிழ்", 3),
        ("اَلْعَرَبِيَّةُ لغة", 2),
        ("می\u200cخواهم بروم", 2),
        ("我喜欢GPU和3只猫。", 9),
        ("これはペンです。", 8),
        ("ที่นี่", 2),
        ("한국어 문장.", 3),
        ("二〇〇八年、人々", 8),
        ("ﾃｽﾄとｶﾞｲﾄﾞ", 7),
        ("ꆈꌠꉙꂷ。", 5),
        ("ᥘᥣᥭᥰ", 4),
        ("ᨣᩴᩤᨾᩮᩬᩥᨦ", 3),
        ("ꧣꧢ", 2),
        ("", 0),
    ],
)
def test_marks_end_no_word_and_letters_without_spaces_count_by_themselves(text: str, length: int) -> None:
    assert lengths([text]) == [length]
