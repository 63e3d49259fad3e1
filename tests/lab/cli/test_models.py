"""The command that lists position encodings."""

import csv
import io
import json
import re
from collections.abc import Callable

import pytest

from floater import catalogue
from floater.encodings.bibliography import read as read_bibtex
from floater.lab.cli import main


def test_models_are_listed_with_measured_cells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split()[1:7] for line in lines[5:]}
    assert list(rows) == list(catalogue())
    assert rows["floater"] == ["2020", "absolute", "both", "yes", "yes", "535,552"]
    assert rows["sinusoidal"] == ["2017", "absolute", "APE", "no", "yes", "0"]
    assert rows["none"] == ["2017", "none", "-", "no", "no", "0"]
    sizes = ["--dim", "64", "--heads", "2", "--layers", "1", "--max-length", "100"]
    assert main(["models", "learned", *sizes]) == 0
    assert "6,400 at dim 64" in capsys.readouterr().out


def test_models_are_found_by_their_properties(
    fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    def names(*arguments: str) -> set[str]:
        assert main(["models", "--format", "json", *arguments]) == 0
        return {row["name"] for row in json.loads(capsys.readouterr().out)}

    some = ("rotary", "alibi", "t5", "xpos", "shaw", "sinusoidal")
    assert names(*some, "--point", "relative", "--kernel", "sdpa") == {"rotary", "xpos"}
    assert names(*some, "--injection", "MAM", "--unbound", "--kernel", "flex") == {"alibi"}
    assert names(*some, "--kernel", "bias", "--no-unbound") == {"t5"}
    assert names("--structure", "tree") == {"floater_tree", "spr_absolute", "spr_relative", "tree"}
    assert names("--survey", "--year", "2021", "--no-learnable") == {"rotary", "shortformer"}
    assert names("t5", "alibi", "t5", "--year", "2021-2022") == {"alibi"}
    assert fails("models", "--structure", "tree", "--no-learnable", "--year", "2026") == (
        "no position encoding has all these properties; leave out one of them"
    )


def test_the_survey_is_shown_beside_what_is_measured(
    fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["axial", "laplacian", "rotary", "alibi"]
    assert main(["models", "--survey", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = {line.split()[0]: line for line in lines[1:4]}
    assert set(rows) == {"axial", "laplacian", "rotary"}
    assert "both (APE)  yes (no)   yes (no)   yes      0 *" in rows["laplacian"]
    assert any(line.startswith("  laplacian, learnable: the eigenvectors are projected") for line in lines)
    assert main(["models", "--survey", *names, "--format", "json"]) == 0
    laplacian = next(r for r in json.loads(capsys.readouterr().out) if r["name"] == "laplacian")
    assert (laplacian["learnable"], laplacian["learnable survey"]) == (True, False)
    assert laplacian["#param survey"] == "0"
    assert main(["models", "--topics", "--format", "csv"]) == 0
    topics = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {
        "topic": "decoder",
        "point": "absolute",
        "paper": "Bao et al. 2019",
        "encodings": "pnat",
    } in topics
    assert fails("models", "--survey", "--columns", "name") == "--survey takes no --columns"
    assert fails("models", "--survey", "alibi") == "the survey of Dufter et al. (2022) does not list alibi"
    assert fails("models", "--topics", "--year", "2020") == "--topics takes no --year"
    assert fails("models", "t5", "--bibtex", "--format", "csv") == "--bibtex takes no --format"
    assert main(["models", "t5", "floater_rotary", "--bibtex"]) == 0
    assert read_bibtex(capsys.readouterr().out).keys() == {
        *("raffel2020exploring", "liu2020floater", "su2021roformer")
    }


def test_the_columns_of_models_are_chosen(
    fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "t5", "--columns", "name,doi,arxiv,title"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("t5         1910.10683  Exploring the Limits")
    assert fails("models", "--columns", "tite") == "there is no column 'tite'; did you mean 'title'?"


def test_models_are_listed_for_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--format", "csv"]) == 0
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert list(rows) == list(catalogue())
    assert rows["rnn"]["parameters"] == str(263_168 + 3_072)  # Table 6, and the starts
    assert rows["shaw"]["options"] == "clip=16, values=True, vectors='learned'"
    assert main(["models", "shaw_absolute", "--format", "markdown"]) == 0
    header, line, row = capsys.readouterr().out.splitlines()
    assert header.count("|") == line.count("|") == row.count("|")
    assert row.endswith("| `2 * t_max**2 * (d // h) * l` | 201,326,592 |")


def test_one_model_is_told_of(fails: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "floater"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "equation W x_t + b + b(t); db/dt = " in said
    assert "9,216 of them in start vectors, 526,336 in the rest" in said  # Table 6: 526.3 K
    assert "refresh_every=1 steps in training between solves" in said
    assert "injection APE in the survey: vectors join queries, keys and values" in said
    assert main(["models", "tree"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "reads Positions.tree" in said
    assert "cache it reads a tree or a graph over all tokens at once" in said
    assert fails("models", "flaoter") == "unknown position model 'flaoter'; did you mean 'floater'?"


def test_bad_dimensions_of_models(fails: Callable[..., str]) -> None:
    assert fails("models", "--dim", "7") == "dim 7 is not a multiple of heads 8"
    said = fails("models", "--dim", "7", "--heads", "1")
    assert re.fullmatch(r"\w+: \w*dim is 7; \w+ positions need an even one", said)
    assert "layers is 0" in fails("models", "--layers", "0")
