"""Each measured number of the pages' running text follows from a stored file."""

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "scripts"))

import certified
import clock
import statements


@pytest.mark.parametrize("name", statements.PAGES)
def test_the_numbers_of_a_page_are_those_that_are_stored(name: str) -> None:
    rows = [row for row in statements.statements() if row["page"] == name]
    assert rows
    assert [message for row in rows if (message := statements.wrong(row))] == []


@pytest.mark.parametrize("name", statements.PAGES)
def test_every_measured_number_of_a_page_has_a_row(name: str) -> None:
    assert statements.unbound(name) == []


@pytest.mark.parametrize("text", ["lower by 1.5 nats", "has 3 % more", "scores 12 BLEU and the other 9"])
def test_a_number_without_a_row_is_named(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = f"A page.\n\n`x=0.1` in 3 words and 2.5 GB; it {text}, with Python 3.11.\n"
    monkeypatch.setattr(statements, "page", lambda name: page)
    monkeypatch.setattr(statements, "statements", list)
    assert len(statements.unbound("page.md")) == sum(word.replace(".", "").isdigit() for word in text.split())


@pytest.mark.parametrize(
    ("shown", "statistic", "against", "right"),
    [
        ("2.0", "mean", "", True),
        ("2.1", "mean", "", False),
        ("2 ± 1.4", "mean ± std", "", True),
        ("2.0 ± 1.0", "mean ± std", "", False),
        ("3", "max", "", True),
        ("−2.0", "difference", "model=b", True),
        ("2.0", "difference", "model=b", False),
        ("100", "% more", "model=c", True),  # twice as many with each seed
        ("50", "% less", "model=c", False),
    ],
)
def test_a_number_is_compared_with_the_stored_one(
    shown: str, statistic: str, against: str, right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("a", 1, 1), ("a", 2, 3), ("b", 1, 3), ("b", 2, 5), ("c", 1, 0.5), ("c", 2, 1.5)]
    with (tmp_path / "scores.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("model", "seed", "score"), *rows])
    monkeypatch.setattr(statements, "page", lambda name: f"Of 7 models\none has {shown} in all, the other 9.")
    row = {"page": "page.md", "text": "{#} models one has {} in all", "file": str(tmp_path / "scores.csv")}
    row |= {"where": "model=a", "column": "score", "against": against, "statistic": statistic}
    assert (statements.wrong(row) is None) == right


def test_the_table_of_parity_is_that_of_the_scores() -> None:
    assert clock.parity(clock.DOCS / "clock") in clock.PAGE.read_text(encoding="utf-8"), "run `make docs`"


@pytest.mark.parametrize("name", certified.written())
def test_the_tables_of_certificates_are_those_of_the_stored_ones(name: str) -> None:
    assert certified.written()[name] in certified.PAGE.read_text(encoding="utf-8"), "run `make docs`"
