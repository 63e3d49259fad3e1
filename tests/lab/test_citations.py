"""What is to be cited for a run or a study."""

import json
from pathlib import Path

import pytest

from floater.encodings.bibliography import bibtex, read
from floater.errors import DataError
from floater.lab import citations
from floater.lab.cli import main
from floater.lab.datasets import datasets

ALWAYS = {"floater", "paszke2019pytorch", "wolf2020transformers"}


def cited(text: str) -> set[str]:
    return read(text + "\n").keys() - ALWAYS


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"task": "translation", "model": {"position": "rotary"}}, {"su2021roformer", "post2018call"}),
        (
            {"model": {"position": "compose", "position_options": {"models": ["t5", {"name": "alibi"}]}}},
            {"raffel2020exploring", "press2022alibi", "dufter2022position"},
        ),
        (
            {"model": {"position": ["none", "shaw"]}},
            {"vaswani2017attention", "shaw2018selfattention", "dufter2022position"},
        ),
        (
            {"task": "squad", "data": {"train": "data/squad/train-v2.0.json"}},
            {"rajpurkar2016squad", "rajpurkar2018know"},
        ),
        ({"task": "glue", "plug": {"options": {}}}, {"wang2018glue", "liu2020floater"}),
        ({"task": "glue", "plug": {"options": None}}, {"wang2018glue"}),
        (
            {"task": "glue", "plug": {"flow": "runs/plugged", "options": None}},
            {"wang2018glue", "liu2020floater"},
        ),
        ({"model": {"position": {"name": "rotary", "clock": {}}}}, {"su2021roformer", "liu2020floater"}),
        (
            {"model": {"position": "alibi", "position_options": {"clock": {}}}},
            {"press2022alibi", "liu2020floater"},
        ),
        (
            {"model": {"position": "untied_cls", "position_options": {"model": "alibi"}}},
            {"press2022alibi", "ke2021rethinking"},
        ),
        ({"model": {"position": "of_mine"}}, set()),
    ],
)
def test_encodings_data_and_software_are_cited(tree, expected):
    assert cited(citations.citation([tree])) == expected


def test_data_without_an_entry_are_named():
    text = citations.citation(
        [{"data": {"source": "en", "train": "mine/a.txt", "valid": "data/wikitext-2/b"}}]
    )
    assert cited(text) == {"merity2017pointer"}
    assert text.endswith("\n\n% no entry is known for mine")
    assert citations.citation([{"data": {"train": "here.csv"}}]).endswith(
        "\n\n% no entry is known for here.csv"
    )


def test_a_study_cites_all_its_models(tmp_path):
    (tmp_path / "study.yaml").write_text(
        "folder: x\nmodels: {t5: , mine: {position: alibi}}\n"
        "settings: {data: {train_source: data/wmt14_en_de/a.en}}\n"
    )
    assert cited(citations.cite(tmp_path)) == {
        *("raffel2020exploring", "press2022alibi", "bojar2014findings", "post2018call")
    }


def test_a_saved_model_is_cited(tmp_path: Path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "floater", "position": "deberta"}))
    assert main(["cite", str(tmp_path)]) == 0
    assert cited(capsys.readouterr().out) == {"he2021deberta"}


def test_an_encoding_without_an_entry_is_named():
    text = citations.citation([{"model": {"position": "of_mine"}}])
    assert text.endswith("% no entry is known for the encoding of_mine")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no run \(config.yaml\), no study"):
        citations.cite(tmp_path)
    with pytest.raises(DataError, match="there is no such directory"):
        citations.cite(tmp_path / "none")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json: not JSON"):
        citations.cite(tmp_path)


def test_every_data_set_of_the_library_has_an_entry():
    for name in datasets():
        tree = {"task": name, "data": {"train": f"data/{name}/train-v2.0.json"}}
        assert cited(citations.citation([tree])), name


def test_references_of_data_are_complete():
    for key, reference in citations._data().items():
        assert {"author", "title", "booktitle", "year"} <= reference.fields.keys(), key
        assert reference.links or reference.arxiv, key
        assert reference.year in key
    assert bibtex(citations._data().values()).isascii()
