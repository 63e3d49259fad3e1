"""The CoNLL-U reader, and position models over the dependency trees it reads."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from floater import Positions, build, catalogue
from floater.encodings.context import AttentionContext
from floater.errors import DataError
from floater.lab.tasks.corpora.conllu import read_conllu, read_sentences

DATA = Path(os.environ.get("FLOATER_DATA", Path(__file__).parents[4] / "shared" / "data"))

LINES = """\
# text = Don't go.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tgone\tgo\tVERB\t_\t_\t_\t_\t3:conj\t_
4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

# text = Stop
1\tStop\tstop\tVERB\tVB\t_\t0\troot\t_\t_
"""


@pytest.fixture
def write(tmp_path):
    def to(text):
        path = tmp_path / "some.conllu"
        path.write_text(text, encoding="utf-8")
        return path

    return to


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
def test_words_tags_heads_and_relations_are_read(write, end):
    first, second = read_conllu(write(LINES + end))
    assert first.words == ["Do", "n't", "go", "."]
    assert first.tags == ["AUX", "PART", "VERB", "PUNCT"]
    assert first.parents == [2, 2, -1, 2]
    assert first.relations == ["aux", "advmod", "root", "punct"]
    assert (second.words, second.parents) == (["Stop"], [-1])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2\tn't", "3\tn't", "line 4: the word has number 3, not 2"),
        (
            "\t0\troot\t_\t_\n3.1",
            "\t-\troot\t_\t_\n3.1",
            "line 5: the head is '-'; it must be a word's number, 0 or _",
        ),
        ("\t0\troot\t_\t_\n3.1", f"\t{'9' * 5000}\troot\t_\t_\n3.1", "line 5: the head is '9"),
        ("# text = Stop", "# global.columns = ID FORM UPOS", "line 9: the columns are ID FORM UPOS, not ID"),
        ("\t0\troot\t_\t_\n3.1", "\t9\troot\t_\t_\n3.1", "line 5: the head is 9, of 4 words"),
        ("3.1", "3.x", "the word has number 3.x, not 4"),
        ("\t.\tPUNCT", " . PUNCT", "line 7: there are 8 fields; CoNLL-U has 10"),
        (
            "1\tStop\tstop\tVERB\tVB\t_\t0\troot\t_\t_",
            "EU NNP B-NP B-ORG",
            "line 10: there is 1 field; CoNLL-U has 10, with a tab between them",
        ),
        ("1\tDo\tdo\tAUX", "1\t\tdo\tAUX", "line 3: FORM is empty; CoNLL-U has _ there"),
        ("1\tDo\tdo\tAUX", "1\tDo\tdo\t ", "line 3: UPOS is empty; CoNLL-U has _ there"),
        ("3\taux\t", "3\t\t", "line 3: DEPREL is empty; CoNLL-U has _ there"),
    ],
)
def test_lines_that_are_not_of_the_format_are_named(write, old, new, message):
    assert old in LINES
    with pytest.raises(DataError, match=message):
        read_conllu(write(LINES.replace(old, new)))


def test_a_file_of_tags_alone_is_read_where_no_tree_is(write):
    tags = "1\tA\ta\tDET\t_\t_\t_\t_\t_\t_\r\n2\t_\t_\tSYM\t_\t_\t_\t_\t_\t_\r\n\r\n"
    path = write("\ufeff# newpar\r\n" + tags)
    (sentence,) = read_sentences(path, structured=False)
    assert (sentence.words, sentence.tags, sentence.parents) == (["A", "_"], ["DET", "SYM"], [])
    with pytest.raises(DataError, match=r"sentence 1: it has a word without a head \(HEAD is _\)"):
        read_sentences(path, structured=True)
    path = write(LINES.replace("\t0\troot\t_\t_\n3.1", "\t_\t_\t_\t_\n3.1"))
    assert [sentence.parents for sentence in read_sentences(path, structured=False)] == [[], [-1]]


@pytest.mark.skipif(not (DATA / "ud_ewt").is_dir(), reason="no dependency trees at hand")
def test_every_structural_row_runs_on_real_trees():
    sentences = read_conllu(DATA / "ud_ewt" / "en_ewt-ud-dev.conllu")
    assert len(sentences) == 2001
    assert sum(len(sentence.words) for sentence in sentences) == 25147
    relations = sorted({relation for sentence in sentences for relation in sentence.relations})
    sizes = {"dim": 32, "heads": 2, "layers": 1, "max_length": 100}
    settings_tree = {
        "tree": {"binary": True, "branching": 2, "depth": 16},
        "structural": {"labels": len(relations)},
        "graph_gru": {"labels": len(relations)},
        "graphormer": {"labels": len(relations)},
    }
    for batch in (sentences[:8], sorted(sentences, key=lambda sentence: -len(sentence.words))[:2]):
        positions = Positions.tree(
            [sentence.parents for sentence in batch],
            labels=[[relations.index(relation) for relation in sentence.relations] for sentence in batch],
        )
        length = positions.key.shape[1]
        for name, row in catalogue().items():
            if not hasattr(row, "needs"):
                continue
            torch.manual_seed(0)
            model = build(name, **sizes, **settings_tree.get(name, {}))
            state = model.prepare(positions)
            x = torch.randn(len(batch), length, 32)
            q, k = torch.randn(2, len(batch), 2, length, 16)
            context = AttentionContext(state, 0)
            out = [model.embed(x, state), model.bias(q, k, context)]
            out.append(model.value_bias((q @ k.mT).softmax(-1), context))
            assert all(bool(y.isfinite().all()) for y in out if y is not None), name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"words": ["a", "b"], "tags": ["D", null]}', "column 'tags': element 2 is None"),
        ('{"words": ["a", null], "tags": ["D", "N"]}', "column 'words': element 2 is None"),
        ('{"words": ["a", "b"], "tags": ["D", ""]}', "column 'tags': element 2 is ''"),
        ('{"words": ["a", "b"], "tags": [0, -100]}', "column 'tags': element 2 is -100"),
        ('{"words": "[\'a\', \'b\']", "tags": "D N"}', "column 'words': .* is a printed list"),
        ('{"words": "a b c", "tags": "[3, 1, 3]"}', r"column 'tags': '\[3, 1, 3\]' is a printed list; store"),
        ('{"words": "[ 3 10]", "tags": "D N"}', "column 'words': .* is a printed list"),
        ('{"words": "a", "tags": 3}', "line 1, column 'tags': 3 is neither a list of tags nor a text with"),
        ('{"words": null, "tags": "D"}', "line 1, column 'words': None is neither a list of words"),
        ('{"words": {"a": 1}, "tags": "D"}', "column 'words': {'a': 1} is neither a list of words"),
        ('{"words": [["a"]], "tags": "D"}', r"column 'words': element 1 is \['a'\]; each must be a text or"),
        ('{"words": [{"a": 1}], "tags": "D"}', "column 'words': element 1 is {'a': 1}; each must be a text"),
        ('{"words": "a", "tags": [-100.0]}', "column 'tags': element 1 is -100.0; each word needs a tag"),
    ],
)
def test_missing_words_and_tags_of_a_table_are_refused(tmp_path, row, message):
    path = tmp_path / "t.jsonl"
    path.write_text(row + "\n")
    with pytest.raises(DataError, match=message):
        read_sentences(path, structured=False)


def test_bytes_are_no_tags_and_whole_numbers_are_the_same_in_every_type(tmp_path):
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"words": [["a", "b"]], "tags": [[1.0, 2.0]]}), path)
    assert read_sentences(path, structured=False)[0].tags == ["1", "2"]
    pa.parquet.write_table(pa.table({"words": [["a"]], "tags": pa.array([b"D"])}), path)
    with pytest.raises(DataError, match="row 1, column 'tags': b'D' is neither a list of tags nor a text"):
        read_sentences(path, structured=False)
    pa.parquet.write_table(pa.table({"words": [["a"]], "tags": [[b"D"]]}), path)
    with pytest.raises(DataError, match="column 'tags': element 1 is b'D'; each must be a text or a whole"):
        read_sentences(path, structured=False)


def test_words_that_are_numbers_and_brackets_are_words(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"words": ["-1", "[", "\'"], "tags": ["N", "P", "P"]}\n')
    assert read_sentences(path, structured=False)[0].words == ["-1", "[", "'"]
    path.write_text('{"words": "[ -1 ]", "tags": "P N P"}\n')
    assert read_sentences(path, structured=False)[0].words == ["[", "-1", "]"]
