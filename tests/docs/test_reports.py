"""The stored reports show the numbers that are stored beside them."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path

import pytest

from floater.lab.study import tables

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NAMES = sorted(folder.parent.name for folder in RESULTS.glob("*/report.json"))


def cells(page: str, table: str) -> list[list[str]]:
    """The texts of a table, line by line."""
    (actual,) = re.findall(rf'<table id="{table}".*?</table>', page, flags=re.DOTALL)
    lines = re.findall(r"<tr>(.*?)</tr>", actual, flags=re.DOTALL)[1:]
    texts = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in lines)
    return [[html.unescape(text) for text in line] for line in texts]


@pytest.mark.parametrize("name", NAMES)
def test_a_report_has_every_stored_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RESULTS.parent)
    import reports

    results = reports.read(RESULTS / name)
    page = (RESULTS / f"{name}.html").read_text(encoding="utf-8")
    shown = {
        "scores": tables.scores(results),
        "grid": tables.trials(results),
        "comparisons": tables.compared(results),
    }
    others = enumerate(tables.others(results).values(), start=1)
    for table, expected in (shown | {f"metric-{n}": other for n, other in others}).items():
        assert cells(page, table) == [[cell.text for cell in row] for row in expected.rows], table
    conclusions = [line["conclusion"] for line in reports._lines(RESULTS / name / "comparisons.csv")]
    assert [results.conclusion(actual) for actual in results.comparisons] == conclusions
    assert len(results.grid.trials) == len({outcome.trial.name for outcome in results.outcomes})


def test_a_report_can_be_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RESULTS.parent)
    import reports

    monkeypatch.setattr(reports, "positions", lambda folder, results: [])
    assert "<h1>" in reports.write("news_s2l")


def test_the_folder_stays_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 4 * 2**20


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("multi30k", "Multi30k, English to German"),
        ("multi30k_s2l", "Short to long, on Multi30k"),
        ("news_s2l", "Short to long, on news"),
    ],
)
def test_the_page_of_results_has_the_stored_scores(name: str, title: str) -> None:
    page = (RESULTS.parent / "results.md").read_text(encoding="utf-8")
    section = page[page.index(f"\n## {title}\n") :]
    section = section[: section.index("\n## ", 1)]
    with (RESULTS / name / "means.csv").open(encoding="utf-8") as file:
        stored = [f"{row['mean']} ± {row['std']}" for row in csv.DictReader(file) if row["metric"] == "bleu"]
    shown = {
        cell.strip() for line in section.splitlines() if line.startswith("| ") for cell in line.split("|")
    }
    assert [score for score in stored if score not in shown] == []


@pytest.mark.parametrize("task", ["reverse", "addition", "sort", "copy", "ListOps"])
def test_every_row_of_a_generated_task_is_stored(task: str) -> None:
    """Its cells are means of the study's report, or of a run that was stored since."""
    page = (RESULTS.parent / "results.md").read_text(encoding="utf-8")
    section = page[page.index(f"\n## Generated tasks: {task}\n") :]
    section = section[: section.index("\n## ", 1)]
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| ")
    ]
    stored: dict[str, dict[tuple[str, str], str]] = {}
    with (RESULTS / f"generated_{task.lower()}" / "means.csv").open(encoding="utf-8") as file:
        for each in csv.DictReader(file):
            spread = f" ± {each['std']}" if each["std"] else ""
            stored.setdefault(each["variant"], {})[each["metric"], each["low"]] = each["mean"] + spread
    with (RESULTS / "reruns.csv").open(encoding="utf-8") as file:
        for each in csv.DictReader(file):  # the last run of a model is shown
            if each["task"] == task.lower():
                score = f"{float(each['score']):.1f}"
                stored.setdefault(each["model"], {})[each["metric"], each["low"]] = score
    first = 1 if task == "ListOps" else 2
    columns, metric = [], "exact"
    for title in head[first:]:
        metric = "tokens" if title.startswith("tokens") else metric
        low = re.findall(r"(\d+)-\d+", title)[0]
        columns.append((metric, "0" if low in ("1", "4") else low))
    assert len(rows) > 7
    for name, *cells in rows:
        scores = stored[name.replace(", ", "-")]
        assert cells[first - 1 :] == [scores[column] for column in columns], name


def test_the_page_of_performance_has_the_stored_ratios() -> None:
    page = (RESULTS.parent / "performance.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    with (RESULTS.parent / "performance" / "steps.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            (shown,) = (cells for cells in rows if cells[0] == f"| {row['what']}")
            assert shown[4].removesuffix(" |") == row["ratio"]
            assert shown[5].removesuffix(" |") == f"{row['low']} to {row['high']}"
