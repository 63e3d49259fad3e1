"""Compute the measured numbers of the pages' text from stored files: `python docs/scripts/statements.py`.

docs/statements.csv has a row for each number. The columns are:

    page       the page, relative to the repository
    text       the words around the number, unique on the page: {} is the number, {#} is another one
    file       the stored files, relative to docs/, separated by spaces
    where      the rows that count: `column=value`, `column!=value` and `column=one|another`, separated by ;
    column     the column of the numbers
    against    what the rows that they are compared with have instead, such as `model=alibi`; may be empty
    statistic  how the page's number follows, a key of STATISTICS

Without an argument the command prints the rows that disagree with what is stored and the numbers without a
row. docs/statements.csv lists measurements only; UNMEASURED says which numbers are none.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from html import unescape
from math import exp, log
from pathlib import Path
from statistics import mean, stdev

from scipy.stats import t as student
from scipy.stats import ttest_ind
from tables import read

DOCS = Path(__file__).parents[1]
TABLE = DOCS / "statements.csv"
PAGES = (
    *("README.md", "docs/index.md", "docs/start.md", "docs/concepts.md", "docs/choose.md", "docs/far.md"),
    *("docs/results.md", "docs/protocol.md", "docs/clock.md", "docs/events.md", "docs/extend.md"),
    "docs/certificate.md",
)
Values = list[float]
Row = dict[str, str]


def _interval(values: Values) -> tuple[float, float]:
    """Return the 95 % interval of a mean by Student's t."""
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return mean(values) - half, mean(values) + half


def _log_ratios(ours: Values, theirs: Values) -> Values:
    return [log(x / y) for x, y in zip(ours, theirs, strict=True)]


def _differences(ours: Values, theirs: Values) -> Values:
    return [x - y for x, y in zip(ours, theirs, strict=True)]


def _percent(log_ratio: float) -> float:
    return 100 * (exp(log_ratio) - 1)


STATISTICS: dict[str, Callable[[Values, Values], float | tuple[float, float]]] = {
    "mean": lambda ours, _: mean(ours),
    "mean ± std": lambda ours, _: (mean(ours), stdev(ours)),
    "min": lambda ours, _: min(ours),
    "max": lambda ours, _: max(ours),
    "range": lambda ours, _: max(ours) - min(ours),
    "count": lambda ours, _: len(ours),
    "share": lambda ours, _: 100 * mean(ours),
    # against other rows; paired by seed where it says so
    "difference": lambda ours, theirs: mean(ours) - mean(theirs),
    "paired low": lambda ours, theirs: _interval(_differences(ours, theirs))[0],
    "paired high": lambda ours, theirs: _interval(_differences(ours, theirs))[1],
    "Welch p": lambda ours, theirs: float(ttest_ind(ours, theirs, equal_var=False).pvalue),
    "ratio": lambda ours, theirs: mean(ours) / mean(theirs),
    # percentages of mean log ratios, paired by seed
    "% more": lambda ours, theirs: _percent(mean(_log_ratios(ours, theirs))),
    "% more, low": lambda ours, theirs: _percent(_interval(_log_ratios(ours, theirs))[0]),
    "% more, high": lambda ours, theirs: _percent(_interval(_log_ratios(ours, theirs))[1]),
    "% more, min": lambda ours, theirs: _percent(min(_log_ratios(ours, theirs))),
    "% more, max": lambda ours, theirs: _percent(max(_log_ratios(ours, theirs))),
    "% less": lambda ours, theirs: -_percent(mean(_log_ratios(ours, theirs))),
    "% less, low": lambda ours, theirs: -_percent(_interval(_log_ratios(ours, theirs))[1]),
    "% less, high": lambda ours, theirs: -_percent(_interval(_log_ratios(ours, theirs))[0]),
    "% less, min": lambda ours, theirs: -_percent(max(_log_ratios(ours, theirs))),
    "% less, max": lambda ours, theirs: -_percent(min(_log_ratios(ours, theirs))),
}


@cache
def rows(file: str) -> list[Row]:
    """Return the rows of a stored file: of a CSV file, a certificate, or the table of scores of a report."""
    path = DOCS / file
    if path.suffix == ".json":
        if path.name == "report.json":
            return _cut(path)
        from certified import rows as certificate_rows  # imports torch

        return certificate_rows(path.stem)
    if path.suffix == ".csv":
        return read(path)
    text = path.read_text(encoding="utf-8")
    (table,) = re.findall(r'<table id="scores".*?</table>', text, re.DOTALL)
    head, *lines = (
        [unescape(re.sub(r"<.*?>| [▲▼]", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        for line in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    )
    return [dict(zip(head, line, strict=True)) for line in lines]


def _cut(path: Path) -> list[Row]:
    """Return how many translations of each trial were cut, by the notes of a report."""
    pattern = r"(.+)-(\d+), (\w+): (\d+) of \d+ translations reached the longest output and were cut\."
    notes = json.loads(path.read_text(encoding="utf-8"))["notes"]
    names = ("model", "seed", "test", "cut")
    return [dict(zip(names, match.groups(), strict=True)) for n in notes if (match := re.match(pattern, n))]


def _matches(row: Row, where: str) -> bool:
    for condition in filter(None, where.split(";")):
        column, differs, values = re.fullmatch(r"([^!=]+)(!?)=(.*)", condition).groups()  # type: ignore[union-attr]
        if (row[column] in values.split("|")) == bool(differs):
            return False
    return True


def _values(files: str, where: str, column: str) -> Values:
    every = (row for file in files.split() for row in rows(file))
    cells = [row[column] for row in every if _matches(row, where)]
    return [float(cell.split(" ± ")[0].replace(",", "")) for cell in cells]


def _instead(where: str, against: str) -> str:
    """Return conditions with those of some columns replaced.

    >>> _instead("model=a;low=80", "model=b")
    'low=80;model=b'
    """
    columns = {re.split("!?=", condition)[0] for condition in against.split(";")}
    return ";".join(
        [
            *(c for c in filter(None, where.split(";")) if re.split("!?=", c)[0] not in columns),
            *against.split(";"),
        ]
    )


def computed(row: Row) -> tuple[float, ...]:
    """Return the number of a row of the table, or a mean and its deviation."""
    ours = _values(row["file"], row["where"], row["column"])
    if not ours:
        raise ValueError(f"no row of {row['file']} has {row['where']}")
    theirs: Values = []
    if row["against"]:
        theirs = _values(row["file"], _instead(row["where"], row["against"]), row["column"])
        if not theirs:
            raise ValueError(f"no row of {row['file']} has {row['against']}")
    result = STATISTICS[row["statistic"]](ours, theirs)
    return result if isinstance(result, tuple) else (result,)


NUMBER = r"(?<![\w.–-])[-−+]?\d+(?:,\d{3})*(?:\.\d+)?(?!\d|[.,]\d)"
SPREAD = rf"{NUMBER}(?:\s±\s+{NUMBER})?"


def shown(row: Row) -> re.Match[str]:
    """Return where a page shows the number of a row; the number is the first group."""
    before, after = (
        re.sub(r"(\\ )+", r"\\s+", re.escape(part)).replace(r"\{\#\}", SPREAD)
        for part in row["text"].split("{}")
    )
    matches = list(re.finditer(f"{before}({SPREAD}){after}", page(row["page"])))
    if len(matches) != 1:
        raise ValueError(f"{row['page']} has {len(matches)} times: {row['text']}")
    return matches[0]


def agrees(text: str, values: tuple[float, ...]) -> bool:
    """Return whether a page's number is the computed one, rounded to its digits.

    >>> agrees("1.5 ± 0.4", (1.46, 0.4)), agrees("−2", (-2.6,)), agrees("1,024", (1024.0,))
    (True, False, True)
    """
    numbers = [part.replace(",", "").replace("−", "-") for part in re.split(r"\s±\s+", text)]
    if len(numbers) != len(values):
        return False
    halves = (0.5 * 10.0 ** -len(number.partition(".")[2]) for number in numbers)
    return all(
        abs(float(number) - value) <= half + 1e-9
        for number, value, half in zip(numbers, values, halves, strict=True)
    )


@cache
def page(name: str) -> str:
    """Return the text of a page."""
    return (DOCS.parent / name).read_text(encoding="utf-8")


def statements() -> list[Row]:
    """Return the rows of the table."""
    return read(TABLE)


def wrong(row: Row) -> str | None:
    """Return how a row disagrees with its page; None if it does not."""
    try:
        text, values = shown(row)[1], computed(row)
    except (ValueError, KeyError) as error:
        return str(error)
    if agrees(text, values):
        return None
    stored = " ± ".join(f"{value:.4f}" for value in values)
    return f"{row['page']} says {text}, stored is {stored}: {row['text']}"


GENERATED = r"<!-- [\w. -]+: written by `make docs` -->.*?<!-- end of [\w. -]+ -->"
"""Tables that `make docs` writes, which their own tests compare with what is stored."""
TABLES_WITH_TESTS = {
    "docs/results.md": r"(?<=\n\n)\| (?:encoding|distance|position encoding) \|.*?\n(?=\n)",
    "docs/extend.md": r"(?<=\n\n)\| method \| trained \|.*?\n(?=\n)",
}  # test_reports.py
UNMEASURED = {
    "code and links": r"(?s:```.*?```)|`[^`]*`|\]\([^)]*\)|https?://\S+",
    "mathematics and HTML": r"\$[^$]*\$|<[^>]*>",
    "names and versions": r"\b(?:Python|torch|Llama|Phi-|SQuAD|[Ss]ections?|[Aa]ppendix|Figures?|Tables?"
    r"|[Ss]eeds?,?|Apache)\s?[A-Z.]?[\d.]+|address of 1946",
    "levels of intervals and tests": r"95 % intervals?|level 0\.05|p < 0\.05",
    "goals": r"(?:at least|within) [\d.]+ (?:%|nats)|\bgoals?\s(?:of|was|were)\s[\d., and]+"
    r"|expected above [\d.]+ %",
    "settings": r"masked tokens \(15 %\)|at most 0\.1 %|penalty of 0\.6|between 1, 0\.1 and 0\.01"
    r"|spacing .{,20} is 0\.1|rates of 2\.5 at full stops and 0\.25|more than 0\.02 nats|dropout 0\.3",
    "a constant": r"log 20 = 3\.00",
    "scores of papers": r"28\.57 BLEU|28\.0 to 28\.2|41\.02 BLEU",
}
"""Patterns of numbers that are not measurements."""
SIZES = "GB|MB|million|thousand"
SETTINGS = (
    r"words?|tokens?|symbols?|digits|bits|keys|vectors|positions|times|of|seeds?|steps|blocks|minutes|on"
    r"|comparisons|pairs|trials?|sentences|translations|preceding|texts?|questions|checkpoints"
)
"""Words that follow the numbers of settings, and the sizes of models and packages."""
SCORES = r"(?:%|BLEU|chrF|nats?|points)(?!\w)"


def running(name: str) -> str:
    """Return the running text of a page, with blanks for what is none, so that offsets stay the same."""

    def blank(pattern: str, text: str) -> str:
        return re.sub(pattern, lambda match: re.sub(r"\S", " ", match[0]), text)

    text = blank(f"(?s){GENERATED}", page(name))
    if name in TABLES_WITH_TESTS:
        text = blank(f"(?s){TABLES_WITH_TESTS[name]}", text)
    sections = r"Withdrawn|Provenance|[^\n]*(?:, as published|The plan)[^\n]*"
    text = blank(rf"(?ms)^## (?:{sections})\n.*?(?=^##+ |\Z)", text)
    commands = r"python|floater|cd|pip|MODEL|make|torchrun|model:"
    text = blank(rf"(?m)(?<=\n\n) {{4,}}(?:{commands})(?s:.*?)(?=\n\n|\Z)", text)
    for pattern in UNMEASURED.values():
        text = blank(pattern, text)
    return text


def measured(name: str) -> Iterator[tuple[int, int]]:
    """Yield the measured numbers of a page's running text.

    These are the decimal numbers, but not sizes, and in a sentence or cell with the unit of a score all
    numbers but those of settings.
    """
    more = rf"(?:(?:,|,?\s(?:to|and|or)|-|–)\s?(?:{SPREAD}|[\d,]+))*"
    size, setting = (re.compile(rf"{more}[\s-]+(?:{words})\b") for words in (SIZES, f"{SIZES}|{SETTINGS}"))
    for sentence in re.finditer(r"(?s).+?(?:\.\s|\n\n|\||\Z)", running(name)):
        scores = re.search(SCORES, sentence[0])
        for match in re.finditer(SPREAD, sentence[0]):
            decimal = "." in match[0]
            if (decimal or scores) and not (size if decimal else setting).match(sentence[0], match.end()):
                yield sentence.start() + match.start(), sentence.start() + match.end()


def unbound(name: str) -> list[str]:
    """Return the measured numbers of a page without a row, each with the words before it."""
    bound = [shown(row).span(1) for row in statements() if row["page"] == name]
    return [
        " ".join(page(name)[max(0, start - 60) : end + 25].split())
        for start, end in measured(name)
        if not any(first <= start and end <= last for first, last in bound)
    ]


def main() -> None:
    """Print what disagrees with the stored files, and what has no row."""
    messages = [message for row in statements() if (message := wrong(row))]
    if not messages:
        messages = [f"{name}: no row for: {text}" for name in PAGES for text in unbound(name)]
    sys.exit("\n".join(messages) or None)


if __name__ == "__main__":
    main()
