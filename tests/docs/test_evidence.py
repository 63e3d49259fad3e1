"""The page "Evidence by question" says what the pages and files that it links say."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "evidence.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.split(r"\n(?=- |\| |\n)", PAGE) if block.strip()]
MEASURED = re.compile(r"\d+\.\d+(?: ± \d+\.\d+)?")


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-")


def section(target: str) -> str:
    """The text under a heading of a page, its subsections included, or a whole page."""
    name, _, anchor = target.partition("#")
    text = (DOCS / name).read_text(encoding="utf-8")
    if not anchor:
        return text
    (start,) = [m for m in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE) if slug(m[2]) == anchor]
    end = re.search(rf"^#{{1,{len(start[1])}}} ", text[start.end() :], re.MULTILINE)
    return text[start.end() :][: end.start()] if end else text[start.end() :]


def measured(block: str) -> list[str]:
    """The measurements of a block; numbers of sections, in italics, are not among them."""
    return MEASURED.findall(re.sub(r"\*(?!\*)[^*]+\*(?!\*)|\]\([^)]*\)", "", block.replace("**", "")))


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if measured(block)], ids=lambda block: block[:30]
)
def test_every_number_is_in_a_section_that_its_line_links(block: str) -> None:
    targets = re.findall(r"\]\(([\w/]+\.md(?:#[\w-]+)?)\)", block)
    assert targets, "a number without a source"
    text = " ".join(map(section, targets))
    assert [number for number in measured(block) if number not in text] == []


def test_every_command_has_its_configuration() -> None:
    named = set(re.findall(r"configs/[\w/]+\.yaml", PAGE))
    assert len(named) > 8
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_question_of_the_survey_is_answered() -> None:
    questions = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert {number for text in questions for number in re.findall(r"5\.2, question (\d)", text)} == set(
        "1234"
    )
    for text in questions:
        assert measured(text) or "not measured" in text.lower(), text


def test_rows_that_were_run_again_are_those_that_are_stored() -> None:
    with (DOCS / "results" / "reruns.csv").open(encoding="utf-8") as file:
        stored = {
            (row["task"], row["model"], row["commit"], row["metric"], row["low"]): float(row["score"])
            for row in csv.DictReader(file)
        }
    keys = {
        "reverse": ("exact 0", "exact 17", "tokens 17", "tokens 33", "tokens 65"),
        "addition": ("exact 0", "exact 9", "tokens 0", "tokens 9", "tokens 17"),
    }
    for task, names in keys.items():
        (row,) = re.findall(
            r"^\| disan \| 1 \| (.*) \|$", section(f"results.md#generated-tasks-{task}"), re.M
        )
        expected = [f"{stored[task, 'disan', '68b0843', *name.split()]:.1f}" for name in names]
        assert row.split(" | ") == expected
