import re

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from floater.errors import DataError
from floater.tasks.measurement import check_edges
from floater.tasks.scores import length_bins, length_table, score, split_compounds

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
@settings(deadline=None, max_examples=15)
def test_order_of_sentences_does_not_matter(order):
    permuted = score([HYPOTHESES[i] for i in order], [REFERENCES[i] for i in order], language="de")
    straight = score(HYPOTHESES, REFERENCES, language="de")
    assert permuted.scores == pytest.approx(straight.scores)


@pytest.mark.parametrize("language", ["de", None, "tr"])
def test_str_is_three_lines_with_score_and_signature(language):
    found = score(HYPOTHESES, REFERENCES, language=language)
    scores, signatures = found.scores, found.signatures
    bleu, chrf, tokenised = str(found).split("\n")
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
    """The words of each line, behind the bounds of its bin."""
    found = score(HYPOTHESES[: len(lengths)], REFERENCES[: len(lengths)], lengths=lengths)
    return [line[22:].split() for line in length_table(length_bins(found, edges))]


def test_bins_hold_the_scores_of_their_sentences():
    for words, members in zip(table(LENGTHS, [8, 10, 100]), ([2, 4], [0], [1, 3]), strict=False):
        inside = [HYPOTHESES[i] for i in members], [[REFERENCES[i] for i in members]]
        assert words[0] == str(len(members))
        assert words[3] == f"{sacrebleu.corpus_bleu(*inside).score:.2f}"
        assert words[5] == f"{sacrebleu.corpus_chrf(*inside).score:.2f}"
    assert table(LENGTHS, [8, 10, 100])[-1] == ["0", "lines", "-"]


def test_a_bin_of_wrong_translations_is_0_and_not_none():
    wrong, empty = length_table(length_bins(score(["x"], ["y"], lengths=[1]), [2]))
    assert wrong.endswith("BLEU 0.00  chrF 0.00")
    assert empty.endswith("-")


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    edges=st.sets(st.integers(1, 30), min_size=1, max_size=4).map(sorted),
)
@settings(deadline=None, max_examples=30)
def test_every_sentence_is_in_the_one_bin_of_its_length(lengths, edges):
    bounds = zip([0, *edges], [*edges, 99], strict=True)
    counts = [sum(low <= n < high for n in lengths) for low, high in bounds]
    assert [int(words[0]) for words in table(lengths, edges)] == counts


@pytest.mark.parametrize("edges", [[0, 5], [5, 5], [10, 5], [-1]])
def test_edges_must_increase_from_above_zero(edges):
    with pytest.raises(DataError, match="must be whole numbers that grow from at least 1"):
        check_edges(edges)
