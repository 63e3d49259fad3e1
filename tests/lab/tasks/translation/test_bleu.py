import re
import unicodedata

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.bleu import _get_tokenizer as real

from floater.errors import DataError
from floater.lab.tasks.measurement import check_edges
from floater.lab.tasks.translation import bleu
from floater.lab.tasks.translation.bleu import (
    check_language,
    length_bins,
    length_table,
    score,
    split_compounds,
)
from floater.lab.text.moses import detokenizer, tokenizer

REFERENCES = [
    "Das E-Mail-Programm läuft seit gestern wieder.",
    "„Wir fahren morgen“, sagte sie, bzw. Peter sagte es.",
    "Der Zug hat 30 Minuten Verspätung.",
    "Sie liest ein Buch über die Geschichte der Stadt.",
    "Ja.",
]
HYPOTHESES = [
    "Das E-Mail-Programm funktioniert seit gestern wieder.",
    '"Wir fahren morgen", sagte sie, bzw. sagte es Peter.',
    "Der Zug ist 30 Minuten verspätet.",
    "Sie liest ein Buch über die Geschichte der Stadt.",
    "",
]
LENGTHS = [8, 11, 7, 10, 2]


def test_perfect_translations_score_100():
    scores = score(REFERENCES, REFERENCES, language="de")
    assert scores.scores == pytest.approx({"bleu": 100, "chrf": 100, "tokenised_bleu": 100})


def test_plain_scores_are_those_of_sacrebleu():
    scores = score(HYPOTHESES, REFERENCES)
    assert scores.scores["bleu"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.scores["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < scores.scores["bleu"] < 100
    assert "tok:13a" in scores.signatures["bleu"]
    assert "nc:6|nw:0" in scores.signatures["chrf"]


@pytest.mark.parametrize(
    ("language", "sides"), [("de", (HYPOTHESES, REFERENCES)), ("ko", (["한국어 문장입니다."],) * 2)]
)
def test_texts_are_compared_in_the_form_in_which_vocabularies_write(language, sides):
    composed, decomposed = (
        [[unicodedata.normalize(form, line) for line in lines] for lines in sides] for form in ("NFC", "NFD")
    )
    wanted = score(*composed, language=language)
    assert "norm:nfc" not in str(wanted)
    for hypotheses, references in ((composed[0], decomposed[1]), (decomposed[0], composed[1]), decomposed):
        actual = score(hypotheses, references, language=language)
        assert actual.scores == wanted.scores
        for name in wanted.scores:
            assert actual.signatures[name] == f"{wanted.signatures[name]}|norm:nfc"
        assert actual.lines == hypotheses


def test_compounds_count_by_their_parts():
    # Ten tokens (der neue Bus @ ##AT##-##AT## @ Fahrer kommt heute an), of which the seventh is wrong:
    # 9/10, 7/9, 5/8 and 3/7 n-grams match, whose product is 3/16.
    # Unsplit there are six tokens, the third wrong: 5/6, 3/5, 1/4 and, smoothed, 1/6; product 1/48.
    scores = score(
        ["der neue Bus-Lenker kommt heute an"], ["der neue Bus-Fahrer kommt heute an"], language="de"
    )
    assert scores.scores["tokenised_bleu"] == pytest.approx(100 * (3 / 16) ** (1 / 4))
    assert scores.scores["bleu"] == pytest.approx(100 * (1 / 48) ** (1 / 4))


@pytest.mark.parametrize(
    ("sentence", "tokens"),
    [
        ("Baden-Württemberg", "Baden @ ##AT##-##AT## @ Württemberg"),
        ("A-B-C", "A @ ##AT##-##AT## @ B @ ##AT##-##AT## @ C"),
        ("gut - oder", "gut - oder"),
        ("Ein- und Ausgang", "Ein- und Ausgang"),
        ("„so“, sagt er", "&quot; so &quot; , sagt er"),
        ("„so,“ sagt er", "&quot; so &quot; , sagt er"),
        ("Peter bzw. Anna geht.", "Peter bzw. Anna geht ."),
        ("5.000,50 Euro", "5.000,50 Euro"),
        ("", ""),
    ],
)
def test_german_tokens(sentence, tokens):
    assert split_compounds("de")(sentence) == tokens


def test_rules_are_those_of_the_language():
    assert split_compounds("en")("Peter bzw. Anna") == "Peter bzw . Anna"
    assert split_compounds("fr")("l'ami") == "l&apos; ami"
    assert split_compounds("de")("l'ami") != split_compounds("fr")("l'ami")


def test_the_kind_of_quotation_marks_does_not_count_in_tokenised_bleu():
    straight, curly = 'Sie sagte "ja, gern" und ging.', "Sie sagte „ja, gern“ und ging."
    scores = score([straight], [curly], language="de")
    assert scores.scores["tokenised_bleu"] == pytest.approx(100)
    assert scores.scores["bleu"] < 100


@pytest.mark.parametrize(
    ("language", "reason"),
    [(None, "no target language"), ("tr", "no Moses rules for language 'tr'"), ("german", "known: as, .*de")],
)
def test_without_moses_rules_tokenised_bleu_is_none_and_says_why(language, reason):
    scores = score(HYPOTHESES, REFERENCES, language=language)
    assert "tokenised_bleu" not in scores.scores
    assert re.search(f"not computed: .*{reason}", scores.signatures["tokenised_bleu"])
    assert scores.scores["bleu"] == score(HYPOTHESES, REFERENCES, language="de").scores["bleu"]


def test_unknown_language_is_refused():
    with pytest.raises(ValueError, match="no Moses rules for language 'xx'"):
        split_compounds("xx")


@given(order=st.permutations(range(len(REFERENCES))))
@settings(max_examples=15)
def test_order_of_sentences_does_not_matter(order):
    permuted = score([HYPOTHESES[i] for i in order], [REFERENCES[i] for i in order], language="de")
    straight = score(HYPOTHESES, REFERENCES, language="de")
    assert permuted.scores == pytest.approx(straight.scores)


@pytest.mark.parametrize("language", ["de", None, "tr"])
def test_str_is_three_lines_with_score_and_signature(language):
    actual = score(HYPOTHESES, REFERENCES, language=language)
    scores, signatures = actual.scores, actual.signatures
    bleu, chrf, tokenised = str(actual).split("\n")
    assert bleu == f"BLEU {scores['bleu']:.2f} ({signatures['bleu']})"
    assert chrf == f"chrF {scores['chrf']:.2f} ({signatures['chrf']})"
    assert tokenised.endswith(f"({signatures['tokenised_bleu']})")


def test_tokenised_signature_names_tokenizer_and_language():
    signature = score(HYPOTHESES, REFERENCES, language="de").signatures["tokenised_bleu"]
    assert "tok:none" in signature
    assert "moses-de-a+compounds|sacremoses:" in signature


def test_counts_must_agree():
    with pytest.raises(DataError, match="2 hypotheses but 1 references"):
        score(["a", "b"], ["a"])
    with pytest.raises(DataError, match="no sentence"):
        score([], [])


def table(lengths: list[int], edges: list[int]) -> list[list[str]]:
    """The words of each line, behind the bounds of its bin, below the unit."""
    actual = score(HYPOTHESES[: len(lengths)], REFERENCES[: len(lengths)], lengths=lengths)
    return [line[14:].split() for line in length_table(length_bins(actual, edges))[1:]]


def test_bins_hold_the_scores_of_their_sentences():
    for words, members in zip(table(LENGTHS, [8, 10, 100]), ([2, 4], [0], [1, 3]), strict=False):
        inside = [HYPOTHESES[i] for i in members], [[REFERENCES[i] for i in members]]
        assert words[0] == str(len(members))
        assert words[3] == f"{sacrebleu.corpus_bleu(*inside).score:.2f}"
        assert words[5] == f"{sacrebleu.corpus_chrf(*inside).score:.2f}"
    assert table(LENGTHS, [8, 10, 100])[-1] == ["0", "lines", "-"]


def test_a_bin_of_wrong_translations_is_0_and_not_none():
    _, wrong, empty = length_table(length_bins(score(["x"], ["y"], lengths=[1]), [2]))
    assert wrong.endswith("BLEU 0.00  chrF 0.00")
    assert empty.endswith("-")


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    edges=st.sets(st.integers(1, 30), min_size=1, max_size=4).map(sorted),
)
@settings(max_examples=30)
def test_every_sentence_is_in_the_one_bin_of_its_length(lengths, edges):
    bounds = zip([0, *edges], [*edges, 99], strict=True)
    counts = [sum(low <= n < high for n in lengths) for low, high in bounds]
    assert [int(words[0]) for words in table(lengths, edges)] == counts


@pytest.mark.parametrize("edges", [[0, 5], [5, 5], [10, 5], [-1]])
def test_edges_must_increase_from_above_zero(edges):
    with pytest.raises(DataError, match="must be increasing whole numbers of at least 1"):
        check_edges(edges)


PERFECT = {
    "zh": ["今天天气很好。", "我们去公园散步。"],
    "ja": ["今日は良い天気です。", "新しい本を買いました。"],
    "th": ["วันนี้อากาศดีมาก", "เราไปเดินเล่นในสวน"],
    "km": ["ថ្ងៃនេះអាកាសធាតុល្អណាស់"],
    "lo": ["ມື້ນີ້ອາກາດດີຫຼາຍ"],
    "my": ["ဒီနေ့ရာသီဥတုအရမ်းကောင်းတယ်"],
    "bo": ["དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག"],
    "ko": ["오늘 날씨가 아주 좋습니다.", "우리는 공원에 산책하러 갑니다."],
    "de": ["Das Wetter ist heute sehr gut."],
}


@pytest.mark.parametrize("language", PERFECT)
def test_perfect_translations_score_100_in_every_writing(language):
    lines = PERFECT[language]
    actual = score(lines, lines, language=language).scores
    assert actual == pytest.approx(dict.fromkeys(actual, 100))
    assert ("tokenised_bleu" in actual) == (language == "de")
    worse = [line[: len(line) // 2] + line[len(line) // 2 + 1 :] for line in lines]
    assert 0 < score(worse, lines, language=language).scores["bleu"] < 100


@pytest.mark.parametrize(
    ("language", "tokens"),
    [
        *[(code, "zh") for code in ("zh", "ZH", "zh_CN", "zh-Hans", "zh-Hant-TW", "cmn", "zho", "yue")],
        *[(code, "char") for code in ("th", "tha", "TH_th", "mya", "km-KH", "lao", "bod")],
        *[(code, "13a") for code in (None, "de", "en-US", "tr", "xx")],
    ],
)
def test_the_signature_tells_the_tokens_of_the_language(language, tokens):
    assert f"|tok:{tokens}|" in score(["a"], ["a"], language=language).signatures["bleu"]


@pytest.mark.parametrize(
    ("language", "there", "without"), [("jpn", "ja-mecab", "char"), ("ko", "ko-mecab", "13a")]
)
@pytest.mark.parametrize("installed", [True, False])
def test_tokenizers_in_packages_are_used_if_they_are_installed(
    monkeypatch, caplog, language, there, without, installed
):
    bleu._tokenizer.cache_clear()

    class Tokenizer:
        def __init__(self):
            if not installed:
                raise RuntimeError("install it")

        def __call__(self, line):
            return line

        def signature(self):
            return there

    monkeypatch.setattr(
        "sacrebleu.metrics.bleu._get_tokenizer", lambda name: Tokenizer if name == there else real(name)
    )
    actual = score(["a"], ["a"], language=language).signatures["bleu"]
    bleu._tokenizer.cache_clear()
    assert f"|tok:{there if installed else without}|" in actual
    assert installed or f"there is no '{there}' (install it)" in caplog.text


@pytest.mark.parametrize(("language", "warned"), [(None, True), ("en", True), ("zh", False), ("xx", True)])
def test_text_without_spaces_under_another_code_is_said(language, warned, caplog):
    score(PERFECT["zh"], PERFECT["zh"], language=language)
    assert ("no spaces between words" in caplog.text) == warned


@pytest.mark.parametrize(
    "lines", [["今天 天气 很 好 。"], PERFECT["de"], PERFECT["ko"], ["Donaudampfschifffahrt"], [""]]
)
def test_text_with_spaces_is_not(lines, caplog):
    score(lines, lines, language="xx")
    assert not caplog.text


@pytest.mark.parametrize("language", ["zh", "yue", "de", "th", "ko", "tr", "pt_BR", "deu", "quz", "iw"])
def test_known_languages_pass(language):
    check_language(language)


@pytest.mark.parametrize(
    ("language", "why"),
    [
        ("german", "'german' is no code of a language, .*; did you mean 'de'"),
        ("Turkish", "did you mean 'tr'"),
        *((code, f"'{code}' is no code of a language") for code in ("jp", "cz", "xx", "", "e1", "deutsch")),
    ],
)
def test_what_is_no_code_of_a_language_is_refused(language: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        check_language(language)


def test_codes_with_regions_have_the_rules_of_the_language():
    assert (
        split_compounds("de_DE")("E-Mail")
        == split_compounds("deu")("E-Mail")
        == split_compounds("de")("E-Mail")
    )
    with pytest.raises(ValueError, match="Moses does not split the words of 'zh_CN'"):
        split_compounds("zh_CN")


@pytest.mark.parametrize(
    "line", ["我用 Python 3 写了 2 个程序，价格是 5 美元。", "他说：“你好！”（笑）", *PERFECT["zh"]]
)
def test_chinese_comes_back_from_moses(line):
    assert detokenizer("zh")(tokenizer("zh")(line)) == line
