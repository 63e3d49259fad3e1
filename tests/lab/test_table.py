"""Tables in every format, whatever their cells say."""

import csv
import io
import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floater import catalogue
from floater.encodings import StackSpec
from floater.lab.cli import listing, main, survey
from floater.lab.table import FORMATS, Cell, Table, escape

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)")


def is_valid(latex: str) -> bool:
    """Return whether a text has nothing that stops LaTeX: special characters, open braces or formulas."""
    bare = re.sub(r"\$[^$]*\$", "", _COMMAND.sub("", latex))
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0 and not re.search(r"[$%#_^~&<>|\\]", bare)


@given(TEXT)
def test_every_text_is_escaped(text):
    assert is_valid(escape(text))


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_every_format_has_every_cell(rows):
    table = Table(["name", "value"], [[Cell(a), Cell(b)] for a, b in rows])
    read = list(csv.reader(io.StringIO(table.csv())))
    assert read[1:] == [list(row) for row in rows]
    assert json.loads(table.json()) == [{"name": a, "value": b} for a, b in rows]
    body = table.latex().split("\\midrule\n")[1].split("\\bottomrule")[0]
    assert body.count(r" \\" + "\n") == len(rows)
    assert len(table.markdown().splitlines()) >= len(rows) + 2


def test_values_become_columns_of_their_own():
    cells = [Cell("1.5 ± 0.1", values={"": 1.52, "std": 0.12}), Cell("–", values={"": None})]
    table = Table(["model", "BLEU"], [[Cell("a"), cells[0]], [Cell("b"), cells[1]]])
    assert table.csv() == "model,BLEU,BLEU std\na,1.52,0.12\nb,,\n"
    assert json.loads(table.json())[1] == {"model": "b", "BLEU": None, "BLEU std": None}
    assert json.loads(Table(["x"], [[Cell("nan", values={"": float("nan")})]]).json()) == [{"x": None}]


def test_a_long_table_breaks_between_pages():
    table = Table(["n"], [[Cell(str(number))] for number in range(41)], "l")
    assert table.latex("All of them").startswith(
        "\\begin{longtable}{l}\n\\caption{All of them} \\\\\n\\toprule"
    )
    assert "longtable" not in Table(["n"], table.rows[:40], "l").latex("40").split("\\begin{tabular}")[1]


@pytest.mark.parametrize("form", [each for each in FORMATS if each != "text"])
def test_the_catalogue_and_the_survey_are_written_whole(form):
    spec = StackSpec(dim=16, heads=2, layers=2, max_length=8)
    names = ("rotary", "tree", "deberta")
    rows = [listing.columns(name, spec) for name in names]
    for table in (listing.table(rows, listing.LATEX), survey.table(rows), survey.topics()):
        text = table.format(form)
        assert not text.endswith("\n")
        if form == "latex":
            lines = [line for line in text.splitlines() if line.endswith(r"\\")]
            assert {line.count(" & ") for line in lines} == {len(table.head) - 1}
            assert all(is_valid(cell) for line in lines for cell in line.removesuffix(r" \\").split(" & "))


def test_names_and_cells_too_wide_for_a_page_are_broken():
    long = "one two three four five six seven eight nine ten"
    lines = Table(["exact match (%) 17-32", "notes"], [[Cell("1.0"), Cell(long)]], "rl").latex().splitlines()
    assert lines[0] == r"\begin{tabular}{rp{0.45\linewidth}}"
    assert lines[2] == r"\shortstack[r]{exact \\ match (\%) \\ 17-32} & notes \\"
    small = Table(list("abcdefgh"), [[Cell("1")] * 8]).latex("All").splitlines()
    assert small[3].startswith(r"{\footnotesize")
    assert small[-2:] == ["}", r"\end{table}"]


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX engine is installed")
def test_latex_compiles_with_its_bibliography_and_fits_a_page(tmp_path, capsys):
    spec = StackSpec(dim=512, heads=8, layers=6, max_length=512)
    rows = [listing.columns(name, spec) for name in catalogue()]
    surveyed = [row for row in rows if row["survey"]]
    bins = [
        "model",
        *(f"exact match (%) {low}-{2 * low - 1} (500 examples)" for low in (1, 2, 4, 8, 16, 32, 64)),
    ]
    scores = Table(bins, [[Cell("none"), *[Cell("100.0 ± 10.0", "best")] * 7]])
    tables = [listing.table(rows, listing.LATEX), survey.table(surveyed), survey.topics(), scores]
    assert main(["models", "--bibtex"]) == 0
    (tmp_path / "all.bib").write_text(capsys.readouterr().out, encoding="utf-8")
    packages = "".join(rf"\usepackage{{{name}}}" for name in ("booktabs", "longtable", "natbib", "url"))
    body = "\n\n".join(rf"\noindent {table.latex('A caption: 50 % of x_1.')}" for table in tables)
    size = r"\setlength{\textwidth}{17cm}"  # A4 with margins of 2 cm
    body += "\n" + r"\bibliographystyle{plainnat}\bibliography{all}"
    document = rf"\documentclass{{article}}{packages}{size}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "tables.tex").write_text(document, encoding="utf-8")
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    for command in (latex, ["bibtex", "tables"], latex, latex):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:]
    assert "undefined citations" not in done.stdout
    wide = re.findall(
        r"Overfull \\hbox \((\d+)\.\d+pt too wide\) in (?:alignment|paragraph)[^\n]*", done.stdout
    )
    assert all(int(points) < 15 for points in wide), done.stdout


def test_text_continues_on_further_lines():
    table = Table(["topic", "names"], [[Cell("a"), Cell("one, two, three, four, five")]], "ll")
    assert table.text(27) == "topic  names\na      one, two, three,\n       four, five"


def test_whatever_the_catalogue_says_is_escaped():
    for model in catalogue().values():
        text = escape(f"{model.card.equation} {model.card.paper} {model.card.models}")
        assert is_valid(text)
        assert text.isascii()
