"""The stored reports show the numbers that are stored beside them."""

from __future__ import annotations

import csv
import html
import re
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal
from itertools import product
from pathlib import Path
from statistics import mean, stdev

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
    conclusions = [line["conclusion"] for line in reports.tables.read(RESULTS / name / "comparisons.csv")]
    assert [results.conclusion(actual) for actual in results.comparisons] == conclusions
    assert len(results.grid.trials) == len({outcome.trial.name for outcome in results.outcomes})


def test_a_report_can_be_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RESULTS.parent)
    import reports

    monkeypatch.setattr(reports, "positions", lambda folder, results: [])
    assert "<h1>" in reports.write("news_s2l")


def test_the_folder_stays_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 4 * 2**20


DEMO = {
    f"`{name}`, sinusoids in cross-attention": f"{name}-cross"
    for name in ("dynamic_bias", "floater_relative")
}


def means(name: str) -> dict[str, set[str]]:
    """The stored means of each variant of a study, and its position parameters, as pages write them.

    Of numbers with three digits a page may show two; the last of 0.655 depends on digits that are not stored.
    """
    stored: dict[str, set[str]] = {}
    for row in read("results", name, "means.csv"):
        numbers = [Decimal(row[key]) for key in ("mean", "std") if row[key]]
        for fewer, up in product((0, 1), (ROUND_HALF_UP, ROUND_HALF_DOWN)):
            last = Decimal(10) ** (int(numbers[0].as_tuple().exponent) + fewer)
            cells = (str(each.quantize(last, up)) for each in numbers)
            stored.setdefault(row["variant"], set()).add(" ± ".join(cells))
    for row in read("results", name, "costs.csv"):
        stored[row["variant"]].add(f"{int(row['position_parameters']):,}")
    return stored


def report(name: str) -> dict[str, set[str]]:
    """The cells of each line of the scores of a report that is stored without its numbers."""
    page = (RESULTS / f"{name}.html").read_text(encoding="utf-8")
    return {line[0]: {cell.removesuffix(" ▲") for cell in line[1:]} for line in cells(page, "scores")}


def similarity(name: str) -> dict[str, set[str]]:
    page = (RESULTS / f"{name}.html").read_text(encoding="utf-8")
    (line,) = set(re.findall(r"mean cosine at (distance [^<\"]*)", page))
    return {"cosine": set(re.findall(r"-?\d\.\d+", line))}


def far(name: str) -> dict[str, set[str]]:
    stored: dict[str, set[str]] = {}
    for row in read("far", f"{name}.csv"):
        if row["metric"] == "bleu":
            stored.setdefault(row["model"], set()).add(f"{float(row['score']):.1f}")
    return stored


def read(*names: str) -> list[dict[str, str]]:
    with RESULTS.parent.joinpath(*names).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


STORED: dict[str, tuple[dict[str, set[str]], dict[str, str]]] = {
    "Multi30k, English to German": (means("multi30k"), {}),
    "Positions of a pretrained model": (similarity("survey_figure10_small"), {}),
    "Untied positions in small masked language models": (report("tupe_small"), {}),
    "Short to long, on Multi30k": (means("multi30k_s2l"), {}),
    "Short to long, on news": (means("news_s2l"), {}),
    "Short to long, on the built-in corpus": (far("demo"), DEMO),
}


def test_every_table_of_the_page_of_results_is_stored() -> None:
    """Each cell with a measurement is a stored number of the variant in its line."""
    page = (RESULTS.parent / "results.md").read_text(encoding="utf-8")
    # tables that a script writes are held by tests/docs/test_page_tables.py
    page = re.sub(r"<!-- (.+?): .*?<!-- end of \1 -->", "", page, flags=re.DOTALL)
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0]
        if title.startswith("Generated tasks") or title in ("Withdrawn", "Provenance"):
            continue  # the next test has the generated tasks
        stored, names = STORED.get(title, ({}, {}))
        shown = 0
        for line in section.splitlines():
            label, *row = [cell.strip() for cell in line.strip("|").split("|")]
            scores = [cell for cell in row if re.fullmatch(r"-?\d+\.\d+( ± .*)?|\d+,\d+", cell)]
            if scores and line.startswith("| "):
                name = names.get(label, label.split(" (")[0].replace(", ", "-"))
                assert [score for score in scores if score not in stored[name]] == [], f"{title}: {label}"
                shown += len(scores)
        assert shown > 4 or title not in STORED, title


def test_the_table_of_extensions_is_that_of_the_stored_scores() -> None:
    page = (RESULTS.parent / "extend.md").read_text(encoding="utf-8")
    columns = ("short", "1-255", "256-511", "512-1023")
    rows = read("extend", "scores.csv")
    for method, trained in {(row["method"], row["trained"]) for row in rows}:
        seeds = [row for row in rows if (row["method"], row["trained"]) == (method, trained)]
        values = [[float(row[column]) for row in seeds] for column in columns]
        cells = " | ".join(f"{mean(each):.2f} ± {stdev(each):.2f}" for each in values)
        assert f"| {method} | {'yes' if trained == 'True' else 'no'} | {cells} |" in page


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


def test_the_problems_of_the_page_of_positions_are_stored() -> None:
    page = (RESULTS.parent / "howto" / "positions.md").read_text(encoding="utf-8")
    stored = {
        (row["task"], row["model"]): f"{float(row['score']):.1f}"
        for row in reversed(read("results", "reruns.csv"))  # the first lengths are those of training
        if row["metric"] == "exact"
    }
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([^|]+) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for task, shown in rows:
        for model, score in re.findall(r"`(\w+)` ([\d.]+)", shown):
            assert stored[task, model] == score
