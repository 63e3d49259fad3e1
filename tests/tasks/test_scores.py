import re

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.errors import DataError
from floater.tasks.scores import LengthBin, bleu_by_length, score, split_compounds

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
    assert (scores.bleu, scores.chrf, scores.tokenised_bleu) == pytest.approx((100, 100, 100))


def test_plain_scores_are_those_of_sacrebleu():
    scores = score(HYPOTHESES, REFERENCES)
    assert scores.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert scores.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert 0 < scores.bleu < 100
    assert "tok:13a" in scores.bleu_signature
    assert "nc:6|nw:0" in scores.chrf_signature


def test_compounds_count_by_their_parts():
    # Ten tokens (der neue Bus @ ##AT##-##AT## @ Fahrer kommt heute an), of which the seventh is wrong:
    # 9/10, 7/9, 5/8 and 3/7 n-grams match, whose product is 3/16.
    # Unsplit there are six tokens, the third wrong: 5/6, 3/5, 1/4 and, smoothed, 1/6; product 1/48.
    scores = score(
        ["der neue Bus-Lenker kommt heute an"], ["der neue Bus-Fahrer kommt heute an"], language="de"
    )
    assert scores.tokenised_bleu == pytest.approx(100 * (3 / 16) ** (1 / 4))
    assert scores.bleu == pytest.approx(100 * (1 / 48) ** (1 / 4))


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
    assert scores.tokenised_bleu == pytest.approx(100)
    assert scores.bleu < 100


@pytest.mark.parametrize(
    ("language", "reason"),
    [(None, "no target language"), ("tr", "no Moses rules for language 'tr'"), ("german", "known: as, .*de")],
)
def test_without_moses_rules_tokenised_bleu_is_none_and_says_why(language, reason):
    scores = score(HYPOTHESES, REFERENCES, language=language)
    assert scores.tokenised_bleu is None
    assert re.search(f"not computed: .*{reason}", scores.tokenised_signature)
    assert scores.bleu == score(HYPOTHESES, REFERENCES, language="de").bleu


def test_unknown_language_is_refused():
    with pytest.raises(ValueError, match="no Moses rules for language 'xx'"):
        split_compounds("xx")


@given(order=st.permutations(range(len(REFERENCES))))
@settings(deadline=None, max_examples=15)
def test_order_of_sentences_does_not_matter(order):
    permuted = score([HYPOTHESES[i] for i in order], [REFERENCES[i] for i in order], language="de")
    straight = score(HYPOTHESES, REFERENCES, language="de")
    assert permuted.bleu == pytest.approx(straight.bleu)
    assert permuted.chrf == pytest.approx(straight.chrf)
    assert permuted.tokenised_bleu == pytest.approx(straight.tokenised_bleu)


@pytest.mark.parametrize("language", ["de", None, "tr"])
def test_str_is_three_lines_with_score_and_signature(language):
    scores = score(HYPOTHESES, REFERENCES, language=language)
    bleu, chrf, tokenised = str(scores).split("\n")
    assert bleu == f"BLEU {scores.bleu:.2f} ({scores.bleu_signature})"
    assert chrf == f"chrF {scores.chrf:.2f} ({scores.chrf_signature})"
    assert tokenised.endswith(f"({scores.tokenised_signature})")


def test_tokenised_signature_names_tokenizer_and_language():
    signature = score(HYPOTHESES, REFERENCES, language="de").tokenised_signature
    assert "tok:none" in signature
    assert "moses-de-a+compounds|sacremoses:" in signature


def test_counts_must_agree():
    with pytest.raises(DataError, match="2 hypotheses but 1 references"):
        score(["a", "b"], ["a"])
    with pytest.raises(DataError, match="no sentence"):
        score([], [])
    with pytest.raises(DataError, match="1 hypotheses but 2 lengths"):
        bleu_by_length(["a"], ["a"], [1, 2], [5])
    with pytest.raises(DataError, match="no sentence"):
        bleu_by_length([], [], [], [5])


def test_bins_hold_the_scores_of_their_sentences():
    bins = bleu_by_length(HYPOTHESES, REFERENCES, LENGTHS, edges=[8, 10, 100])
    assert [(b.low, b.high, b.count) for b in bins] == [(0, 8, 2), (8, 10, 1), (10, 100, 2), (100, None, 0)]
    for found, members in zip(bins, ([2, 4], [0], [1, 3]), strict=False):
        inside = [HYPOTHESES[i] for i in members], [[REFERENCES[i] for i in members]]
        assert found.bleu == sacrebleu.corpus_bleu(*inside).score
        assert found.chrf == sacrebleu.corpus_chrf(*inside).score
    assert bins[-1] == LengthBin(100, None, 0, bleu=None, chrf=None)


def test_a_bin_of_wrong_translations_is_0_and_not_none():
    wrong, empty = bleu_by_length(["x"], ["y"], [1], edges=[2])
    assert (wrong.bleu, wrong.chrf) == (0, 0)
    assert (empty.bleu, empty.chrf) == (None, None)


def test_without_edges_the_one_bin_is_the_corpus():
    whole = score(HYPOTHESES, REFERENCES)
    expected = LengthBin(0, None, len(REFERENCES), whole.bleu, whole.chrf)
    assert bleu_by_length(HYPOTHESES, REFERENCES, LENGTHS, edges=[]) == [expected]


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    edges=st.sets(st.integers(1, 30), max_size=4).map(sorted),
)
@settings(deadline=None, max_examples=30)
def test_every_sentence_is_in_the_one_bin_of_its_length(lengths, edges):
    texts = ["ein Satz"] * len(lengths)
    bins = bleu_by_length(texts, texts, lengths, edges)
    for b in bins:
        assert b.count == sum(b.low <= n and (b.high is None or n < b.high) for n in lengths)
    assert sum(b.count for b in bins) == len(lengths)


@pytest.mark.parametrize("edges", [[0, 5], [5, 5], [10, 5], [-1]])
def test_edges_must_increase_from_above_zero(edges):
    with pytest.raises(ValueError, match="positive and strictly increasing"):
        bleu_by_length(["a"], ["a"], [1], edges)


def test_negative_length_is_refused():
    with pytest.raises(ValueError, match="got -1"):
        bleu_by_length(["a", "b"], ["a", "b"], [3, -1], [2])
