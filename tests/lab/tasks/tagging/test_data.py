"""Vocabularies, and batches with trees and without."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from floater.errors import DataError
from floater.lab.settings import make
from floater.lab.tasks import task
from floater.lab.tasks.corpora.conllu import Sentence, read_sentences
from floater.lab.tasks.examples import Encoded
from floater.lab.tasks.tagging import TaggingSettings, collate, encode
from floater.lab.text.vocabulary import Vocabulary, shapes

from .small import conllu

SENTENCES = [
    Sentence(["The", "cat", "sat"], ["DET", "NOUN", "VERB"], [1, 2, -1], ["det", "nsubj", "root"]),
    Sentence(["The", "mat"], ["DET", "NOUN"], [1, -1], ["det", "root"]),
]


def vocabulary_of(sentences: Sequence[Sentence], **how: int) -> Vocabulary:
    tags = chain.from_iterable(sentence.tags for sentence in sentences)
    relations = chain.from_iterable(sentence.relations for sentence in sentences)
    return Vocabulary.of([sentence.words for sentence in sentences], tags, relations, **how)


def test_frequent_words_have_ids_and_rare_ones_those_of_their_shapes() -> None:
    vocabulary = vocabulary_of(SENTENCES, min_count=2, suffix=2)
    assert vocabulary.words == ["The"]
    # cat and mat share "at"; sat does as well
    assert set(vocabulary.shapes) == {"small at", "small t", "small "}
    the, rare = vocabulary.ids(["The", "rat"])
    assert (the, rare) == (2, 3 + vocabulary.shapes.index("small at"))
    assert vocabulary.ids(["cat", "hat"]) == [rare, rare]
    small = 3 + vocabulary.shapes.index("small ")
    assert vocabulary.ids(["dog", "it", "Dog", "7"]) == [small, 3 + vocabulary.shapes.index("small t"), 1, 1]
    assert ("The" in vocabulary, "cat" in vocabulary) == (True, False)
    assert len(vocabulary) == 6


def test_without_suffixes_all_rare_words_are_one() -> None:
    vocabulary = vocabulary_of(SENTENCES, min_count=2, suffix=0)
    assert (vocabulary.shapes, vocabulary.ids(["cat", "Dog"]), len(vocabulary)) == ([], [1, 1], 3)


def test_a_word_shorter_than_the_suffix_has_the_shapes_there_are() -> None:
    assert list(shapes("ox", 3)) == ["small ox", "small x", "small "]
    assert list(shapes("B2", 1)) == ["digit 2", "digit "]


def test_a_vocabulary_comes_back_from_its_directory(tmp_path: Path) -> None:
    vocabulary = vocabulary_of(SENTENCES, min_count=2, suffix=2)
    vocabulary.save_pretrained(tmp_path)
    again = Vocabulary.from_pretrained(tmp_path)
    assert vars(again) == vars(vocabulary)
    (tmp_path / "vocabulary.json").write_text("[]")
    with pytest.raises(DataError, match="holds no vocabulary that can be read"):
        Vocabulary.from_pretrained(tmp_path)


def test_batches_hold_ids_tags_and_the_tree() -> None:
    vocabulary = vocabulary_of(SENTENCES[:1], min_count=1, suffix=0)
    examples = encode(SENTENCES, vocabulary)
    batch = collate([examples[0], examples[1]], structured=True)
    assert batch["input_ids"].tolist() == [[2, 3, 4], [2, 1, 0]]
    assert batch["labels"].tolist() == [[0, 1, 2], [0, 1, -100]]
    structure = batch["positions"].structure
    assert structure.parents.tolist() == [[1, 2, -1], [1, -1, -1]]
    det, nsubj = vocabulary.edges(["det", "nsubj"])
    assert (det, nsubj) == (1, 2)
    # an edge holds its label plus 1, from the head to the word
    assert structure.edges[0].tolist() == [[0, 0, 0], [det + 1, 0, 0], [0, nsubj + 1, 0]]
    assert structure.edges[1].tolist() == [[0, 0, 0], [det + 1, 0, 0], [0, 0, 0]]
    plain = collate([examples[0], examples[1]], structured=False)
    assert plain["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert "positions" not in plain


def test_tags_and_relations_that_were_not_seen() -> None:
    vocabulary = vocabulary_of(SENTENCES[1:], min_count=1, suffix=0)
    assert vocabulary.labels(["VERB", "NOUN"]) == [-100, 1]
    assert vocabulary.edges(["nsubj", "root"]) == [0, 2]


def test_long_sentences_are_left_out_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    vocabulary, tagging = vocabulary_of(SENTENCES, min_count=1, suffix=0), task("tagging")

    def encoded(most: int) -> Encoded:
        data = {"train": "a", "valid": "b", "max_tokens": most}
        config = make(TaggingSettings, {"run": "run", "data": data}, "here")
        actual: Encoded = tagging.encode(config, vocabulary, SENTENCES, training=True)
        return actual

    with caplog.at_level("INFO"):
        assert encoded(2).lengths == [2]
    assert "1 training sentences of more than 2 words excluded" in caplog.text
    with pytest.raises(DataError, match="no sentence is left: all 2 have more than 1 words"):
        encoded(1)


def test_a_sentence_that_is_no_tree_is_named_where_trees_are_read(tmp_path: Path) -> None:
    good = (["a"], ["X"], [-1])
    path = tmp_path / "bad.conllu"
    for parents, message in (
        ([1, 0], "sentence 2: it has no root"),
        ([-1, -1], "sentence 2: it has 2 roots"),
        ([-1, 2, 1], "sentence 2: it has a cycle: node 1"),
    ):
        path.write_text(conllu([good, (["w"] * len(parents), ["X"] * len(parents), parents)]))
        with pytest.raises(DataError, match=message):
            read_sentences(path, structured=True)
        assert len(read_sentences(path, structured=False)) == 2
    path.write_text(conllu([good, (["w", "v"], ["X", "_"], [-1, 0])]))
    with pytest.raises(DataError, match=r"sentence 2: 'v' has no tag \(UPOS is _\)"):
        read_sentences(path, structured=False)
    path.write_text("# nothing\n")
    with pytest.raises(DataError, match="holds no sentence"):
        read_sentences(path, structured=False)
