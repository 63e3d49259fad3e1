"""Every measured table of a page is written from a stored file, which also has the numbers of the text."""

from __future__ import annotations

import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from floater import flow

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "scripts"))

import statements  # noqa: E402
import tables  # noqa: E402

PAGES = sorted(DOCS.rglob("*.md"))
STORED = [page for page in PAGES if tables.parts(page)]
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?(?![\w.]*\d)")
HELD = {
    "catalogue.md": "tests/lab/test_listing.py",
    "certificate.md": "docs/scripts/certified.py",
    "choose.md": "docs/statements.csv",
    "clock.md": "docs/scripts/clock.py",
    "compared.md": "tests/test_compared.py",
    "concepts.md": "",  # the number of a section
    "design/collocation.md: constant/value": "tests/docs/test_page_tables.py",
    "events.md: setting/value": "",  # the plan
    "evidence.md": "tests/docs/test_evidence.py",
    "extend.md": "tests/docs/test_reports.py",
    "far.md": "docs/scripts/far.py",
    "fullsize.md: column/arithmetic": "docs/scripts/fullsize.py",
    "howto/several-gpus.md: setup/models": "",  # tolerances of tests, nothing that was measured
    "howto/positions.md: problem/asks for": "tests/docs/test_reports.py",
    "howto/serve.md: /Transformers 5": "",  # versions
    "promises.md": "tests/docs/test_promises.py",
    "protocol.md: setting/value": "",  # the plan
    "results.md": "tests/docs/test_reports.py",
    "tutorials/pairs.md": "",  # an example of a text
}
"""Test, script or file that holds what no stored table has, on a whole page or under the first two cells of a
head; empty where nothing was measured."""
SETTINGS = {
    "design/collocation.md": (1.6,),
    "fullsize.md": (0.02,),
    "gpu.md": (2.11, 2.13, 5.23),
    "howto/several-gpus.md": (0.18, 1.15, 2.13, 3.9),
    "howto/serve.md": (0.32, 1.32, 2.13, 5.19, 5.23),
    "performance.md": (0.4, 2.13),
}
"""Numbers of the running text that were not measured: versions, steps, goals, limits."""
ELSEWHERE = {DOCS.parent / name for name in statements.PAGES} | {DOCS / "compared.md"}
TEXTS = [page for page in STORED if page not in ELSEWHERE]


def names(pages: list[Path]) -> list[str]:
    return [page.relative_to(DOCS).as_posix() for page in pages]


def text_of(page: Path) -> str:
    """The page without code."""
    code = r"^```.*?^```$|^    [^\n]*$|`[^`\n]*`"
    return re.sub(code, "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.mark.parametrize("page", STORED, ids=names(STORED))
def test_the_tables_of_a_page_are_those_of_its_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, part in tables.parts(page).items():
        begin, end = tables.BEGIN.format(name), tables.END.format(name)
        assert f"{begin}\n\n{part}\n\n{end}" in text, "run `make docs`"


@pytest.mark.parametrize("page", STORED, ids=names(STORED))
def test_every_stored_table_is_shown_and_its_commits_are_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file in page.with_suffix("").glob("*.csv"):
        shown = any(name.split()[0] == file.name for name in tables.parts(page))
        assert shown or f"({page.stem}/{file.name})" in text, file  # or linked
        for row in tables.read(file) if shown else ():
            for commit in re.findall(r"\b[0-9a-f]{7,8}\b", row.get("commit", "")):
                assert commit in text, f"{file}: {commit}"


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_a_table_with_measurements_is_held(page: Path) -> None:
    """It stands between comments, as a script writes it, or a test or script of `HELD` has it."""
    text = re.sub(r"<!-- (.+?)(:.*?)? -->.*?<!-- end of \1 -->", "", text_of(page), flags=re.S)
    loose = [block for block in re.findall(r"(?:^\|[^\n]*\n)+", text, re.M) if DECIMAL.search(block)]
    name = page.relative_to(DOCS).as_posix()
    heads = {"/".join(cell.strip() for cell in block.split("|")[1:3]) for block in loose}
    held = {
        key.removeprefix(name).removeprefix(": "): HELD[key] for key in HELD if key.split(": ")[0] == name
    }
    assert held if "" in held else heads - held.keys() == set()
    assert all((DOCS.parent / file).is_file() for file in held.values() if file)


@pytest.mark.parametrize("page", TEXTS, ids=names(TEXTS))
def test_running_text_has_only_numbers_of_the_tables(page: Path) -> None:
    """Each decimal stands in a table of the page, in its files, or in a file that the page names."""
    lines = text_of(page).splitlines()
    files = [*page.with_suffix("").glob("*.csv")]
    files += [
        DOCS.parent / name for name in re.findall(r"docs/[\w/]+\.csv", page.read_text(encoding="utf-8"))
    ]
    texts = [line for line in lines if line.startswith("|")]
    texts += [file.read_text(encoding="utf-8") for file in files]
    stored = {float(number) for text in texts for number in DECIMAL.findall(text)}
    stored |= {*SETTINGS.get(page.relative_to(DOCS).as_posix(), ())}
    prose = "\n".join(line for line in lines if not line.startswith(("|", "<!--")))
    assert [number for number in DECIMAL.findall(prose) if float(number) not in stored] == []


def constants() -> dict[str, set[float]]:
    """The numbers of all modules of flows by their names."""
    values: dict[str, set[float]] = {}
    for module in pkgutil.walk_packages(flow.__path__, "floater.flow."):
        for name, value in vars(import_module(module.name)).items():
            numbers = value if isinstance(value, tuple) else (value,)
            if name.isupper() and all(isinstance(each, int | float) for each in numbers):
                values.setdefault(name, set()).update(numbers)
    return values


def test_the_constants_of_collocation_are_those_of_the_code() -> None:
    page = (DOCS / "design" / "collocation.md").read_text(encoding="utf-8")
    rows = page[page.index("| constant | value |") :].split("\n\n")[0].splitlines()[2:]
    values = constants()
    assert len(rows) > 15
    for row in rows:
        names, numbers, _ = row.strip("| ").split(" | ")
        shown = {number(text) for text in re.findall(r"2\^-?\d+|\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?", numbers)}
        named = [values[name] for name in re.findall(r"`(?:\w+\.)?(\w+)`", names)]
        assert shown <= set().union(*named), row
        assert all(each & shown for each in named), row


def number(text: str) -> float:
    base, _, power = text.replace(",", "").partition("^")
    return float(base) ** int(power or 1)


def test_concepts_compares_the_parameters_of_a_field_with_tables() -> None:
    page = " ".join((DOCS / "concepts.md").read_text(encoding="utf-8").split())
    assert "At width 512 these are twice as many as in a table of 512 positions, and a third of" in page
    field = sum(parameter.numel() for parameter in flow.MLPField(512).parameters())
    assert field == 2 * 512 * (512 + 2)
    assert round(field / 512**2, 1) == 2.0
    assert round(field / (6 * 512**2), 2) == 0.33


def test_the_opening_of_performance_rounds_its_tables() -> None:
    opening = (DOCS / "performance.md").read_text(encoding="utf-8").split("\n\n")[3]
    rows = {
        row["step"]: 100 * float(row["ratio"]) - 100
        for name in ("steps", "pretrained")
        for row in tables.read(DOCS / "performance" / f"{name}.csv")
    }
    fresh = "training, {}, a fresh solve every step".format
    steps = [rows[fresh("transformer-base")], rows[fresh("tiny")], rows["training, trained flow"]]
    inference = [ratio for step, ratio in rows.items() if step.startswith("inference")]
    sizes = {row["size"]: row for row in tables.read(DOCS / "performance" / "sizes.csv")}
    more = [
        int(row["memory: floater"].replace(",", "")) - int(row["memory, MiB: sinusoidal"].replace(",", ""))
        for row in (sizes["transformer-base"], sizes["transformer-big"])
    ]
    shown = list(map(int, re.findall(r"(\d+)(?= %| to | MiB)", opening)))
    assert shown == [*map(round, steps), round(min(inference)), round(max(inference)), *more]
