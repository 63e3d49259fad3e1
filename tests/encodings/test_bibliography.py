"""The papers of the catalogue, and that their entries are valid BibTeX."""

import re

import pytest

from floater import catalogue
from floater.encodings import Card
from floater.encodings.bibliography import bibtex, commands, lookup, read, references

REQUIRED = {
    "inproceedings": {"author", "title", "booktitle", "year"},
    "article": {"author", "title", "journal", "year"},
    "misc": {"author", "title", "year"},
}


@pytest.mark.parametrize("name", catalogue())
def test_every_encoding_has_its_paper(name):
    card = catalogue()[name].card
    first = card.references[0]
    assert first.key in references()
    assert card.link in first.links
    assert card.paper.split()[0] in first.authors[0]
    assert card.year == first.year
    assert first.doi or first.arxiv or first.fields.get("url")
    assert len(card.references) == 1 + len(card.also)


def test_fields_are_complete_and_well_formed():
    for key, reference in references().items():
        assert REQUIRED[reference.kind] <= reference.fields.keys(), key
        assert re.fullmatch(r"(19|20)\d\d", reference.year), key
        assert re.fullmatch(r"10\.\d{4,}/\S+|", reference.doi), key
        assert re.fullmatch(r"\d{4}\.\d{5}|", reference.arxiv), key
        surname = commands(reference.authors[0].split()[-1]).lower()
        assert key.startswith(re.sub("[^a-z]", "", surname)), key
        assert reference.year in key, key
        for value in reference.fields.values():
            assert value.count("{") == value.count("}"), key
        if reference.arxiv:  # a paper is not older than its preprint by more than a year
            assert int(reference.year) >= 2000 + int(reference.arxiv[:2]), key


def test_no_paper_is_there_twice():
    for field in ("doi", "arxiv", "title"):
        values = [value for each in references().values() if (value := getattr(each, field))]
        assert len(values) == len(set(values))


def test_what_is_written_is_read_again():
    text = bibtex(references().values())
    assert text.isascii()
    again = read(text + "\n")
    assert again.keys() == references().keys()
    assert all(again[key].fields.keys() == references()[key].fields.keys() for key in again)
    assert {key: each.doi for key, each in again.items()} == {
        key: each.doi for key, each in references().items()
    }


@pytest.mark.parametrize("text", ["@misc{a,\n  year = 2020,\n}\n", "@misc{a,\n}\n@misc{a,\n}\n", "text"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match=r"no BibTeX entry|occurs twice"):
        read(text)


def test_an_encoding_from_outside_has_the_entry_that_it_brings_or_one_of_its_authors():
    entry = "@misc{doe2026,\n  author = {Doe},\n  title = {Mine},\n  year = {2026},\n}\n"
    assert Card("Doe 2026", "", "relative", "", bibtex=entry).references[0].title == "Mine"
    reference = Card("Doe and Roe 2026", "https://my.org/x", "relative", "").references[0]
    assert (reference.key, reference.authors, reference.year) == ("doe2026", ["Doe", "Roe"], "2026")
    assert Card("", "", "relative", "").references == []
    assert lookup("https://nowhere.org") is None


def test_structures_are_those_that_the_model_reads():
    for name, model in catalogue().items():
        if hasattr(model, "needs"):
            assert model.card.structure == model.needs, name
        else:
            assert model.card.structure in ("sequence", "grid"), name
