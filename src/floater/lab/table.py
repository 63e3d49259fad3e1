"""Tables: as text, Markdown, CSV, JSON and LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from floater.encodings.bibliography import commands

Format = Literal["text", "markdown", "csv", "json", "latex"]
FORMATS: tuple[Format, ...] = get_args(Format)
_LONG = 40  # rows of a table that LaTeX has to break at the end of a page
_TEXT_WIDTH = 44  # characters of a cell from which on LaTeX has to break it
_HEAD_WIDTH = 10  # characters of a column's name that LaTeX does not break
_MANY = 7  # columns from which on LaTeX sets a table in small type
_TEXT = dict(
    zip("\\~^<>|", ("backslash", "asciitilde", "asciicircum", "less", "greater", "bar"), strict=True)
)
_MATH = {"±": "pm", "≥": "geq", "≤": "leq", "·": "cdot", "×": "times", "∞": "infty"}
_MATH |= {"▲": "bigtriangleup", "▼": "bigtriangledown"}
_ESCAPED = {character: f"\\{character}" for character in "&%$#_{}"}
_ESCAPED |= {character: rf"\text{name}{{}}" for character, name in _TEXT.items()}
_ESCAPED |= {character: rf"$\{name}$" for character, name in _MATH.items()}
_ESCAPED |= {"−": "$-$", "–": "--", "—": "---", "’": "'", "“": "``", "”": "''", "…": r"\dots{}"}


@dataclass(frozen=True)
class Cell:
    r"""A cell of a table.

    Args:
        text: displayed text.
        kind: classes of its style, separated by spaces, of "better", "worse", "best", "failed" and "code".
        values: its values for CSV and JSON: "" names that of the column, other names those of further
            columns, as "std". By default the text is the value.
        link: address of a link, for Markdown.
        tex: LaTeX in place of the text, as "\citet{liu2020floater}".
    """

    text: str
    kind: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    link: str = ""
    tex: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        head: names of the columns.
        rows: the rows, each with a cell per column.
        align: alignment of each column, "l" or "r"; by default the first is left, the others right.
    """

    head: list[str]
    rows: list[list[Cell]]
    align: str = ""

    @property
    def _align(self) -> str:
        return self.align or "l" + "r" * (len(self.head) - 1)

    def format(self, form: Format) -> str:
        """Return the table in a format, without a line break at the end."""
        text: str = getattr(self, form)()
        return text.rstrip("\n")

    def fit(self, width: int) -> Table:
        """Return the table of the first columns that fit into a width as text; at least of one.

        Example:
            >>> Table(["name", "paper"], [[Cell("t5"), Cell("Raffel et al. 2020")]]).fit(20).head
            ['name']
        """
        total, count = -2, 0
        for column in self._texts():
            total += 2 + max(map(len, column))
            if total > width and count:
                break
            count += 1
        rows = [row[:count] for row in self.rows]
        return replace(self, head=self.head[:count], rows=rows, align=self._align[:count])

    def text(self, width: int | None = None) -> str:
        """Return the table as aligned text.

        Args:
            width: columns of the text; the last column of the table continues on further lines.

        Example:
            >>> print(Table(["model", "BLEU"], [[Cell("none"), Cell("1.0")]]).text())
            model  BLEU
            none    1.0
        """
        padded = []
        for column, side in zip(self._texts(), self._align, strict=True):
            longest = max(map(len, column))
            padded.append([text.rjust(longest) if side == "r" else text.ljust(longest) for text in column])
        indent = sum(len(column[0]) + 2 for column in padded[:-1])
        lines = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
        if width is not None:
            rest = max(width - indent, 20)
            wrapped = [(line[:indent], textwrap.wrap(line[indent:], rest) or [""]) for line in lines]
            lines = [
                f"\n{' ' * indent}".join([left + parts[0], *parts[1:]]).rstrip() for left, parts in wrapped
            ]
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the table as Markdown.

        Example:
            >>> print(Table(["model", "BLEU"], [[Cell("none"), Cell("1.0")]]).markdown(), end="")
            | model | BLEU |
            |---|---:|
            | none | 1.0 |
        """
        lines = [self.head, *(list(map(_markdown, row)) for row in self.rows)]
        bars = ["| " + " | ".join(line) + " |" for line in lines]
        bars.insert(1, "|" + "".join("---:|" if side == "r" else "---|" for side in self._align))
        return "\n".join(bars) + "\n"

    def latex(self, caption: str = "") -> str:
        r"""Return the table in LaTeX with the rules of booktabs; a long one breaks between pages (longtable).

        Names of columns that are wider than their cells are set in several lines, long cells as paragraphs,
        and tables of more than 7 columns in small type.

        Args:
            caption: caption of a floating table; without one only the table itself is returned.

        Example:
            >>> print(Table(["model", "BLEU"], [[Cell("a_b", "best"), Cell("1.0 ± 0.1")]]).latex(), end="")
            \begin{tabular}{lr}
            \toprule
            model & BLEU \\
            \midrule
            \textbf{a\_b} & 1.0 $\pm$ 0.1 \\
            \bottomrule
            \end{tabular}
        """
        long = len(self.rows) > _LONG
        kind = "longtable" if long else "tabular"
        widths = [max(map(len, cells), default=0) for _, *cells in self._texts()]
        columns = list(zip(self.head, widths, self._align, strict=True))
        head = " & ".join(_stacked(name, max(width, _HEAD_WIDTH), side) for name, width, side in columns)
        paragraphs = sum(width > _TEXT_WIDTH for width in widths)
        sides = [
            rf"p{{{0.45 / paragraphs:.2g}\linewidth}}" if width > _TEXT_WIDTH else side
            for _, width, side in columns
        ]
        title = rf"\caption{{{escape(caption)}}}" if caption else ""
        lines = [rf"\begin{{{kind}}}{{{''.join(sides)}}}"]
        lines += [title + r" \\"] if title and long else []
        lines += [r"\toprule", head + r" \\", r"\midrule", *([r"\endhead"] if long else [])]
        lines += [" & ".join(map(_latex, row)) + r" \\" for row in self.rows]
        lines += [r"\bottomrule", rf"\end{{{kind}}}"]
        if len(self.head) > _MANY:
            lines = [r"{\footnotesize\setlength{\tabcolsep}{2pt}%", *lines, "}"]
        if title and not long:
            lines = [r"\begin{table}", r"\centering", title, *lines, r"\end{table}"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return the values as CSV, with "yes" and "no" for booleans and nothing for None.

        Example:
            >>> cell = Cell("1.0 ± 0.1", values={"": 1.01, "std": 0.12})
            >>> print(Table(["model", "BLEU"], [[Cell("none"), cell]]).csv(), end="")
            model,BLEU,BLEU std
            none,1.01,0.12
        """
        records = self.records()
        head = list(records[0]) if records else self.head
        return as_csv([head, *([_plain(value) for value in record.values()] for record in records)])

    def json(self) -> str:
        """Return the values as JSON: a list of objects, with null for numbers that are not finite."""
        records = [{name: _finite(value) for name, value in record.items()} for record in self.records()]
        return json.dumps(records, indent=1, ensure_ascii=False, allow_nan=False)

    def records(self) -> list[dict[str, Any]]:
        """Return the values of each row by the names of the columns."""
        columns = []
        for index, name in enumerate(self.head):
            parts = dict.fromkeys(part for row in self.rows for part in row[index].values or [""])
            columns += [(index, part, f"{name} {part}".strip()) for part in parts]
        return [{name: _value(row[index], part) for index, part, name in columns} for row in self.rows]

    def _texts(self) -> list[tuple[str, ...]]:
        """Return the texts of each column, the head first."""
        lines = [self.head, *([cell.text for cell in row] for row in self.rows)]
        return list(zip(*lines, strict=True))


def escape(text: str) -> str:
    r"""Return a text for LaTeX: special characters, accents, Greek letters and signs as commands.

    Example:
        >>> print(escape("50 % of x_1 ± ω, Schütze"))
        50 \% of x\_1 $\pm$ $\omega$, Sch{\"u}tze
    """
    return "".join(_escaped(character) for character in text)


def as_csv(lines: Iterable[Iterable[object]]) -> str:
    """Return lines of values as CSV; None becomes an empty value."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(["" if v is None else v for v in line] for line in lines)
    return file.getvalue()


def _escaped(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    kind, _, letter = unicodedata.name(character, "").partition(" LETTER ")
    if kind == "GREEK SMALL":
        return rf"$\{letter.split()[-1].lower()}$"
    return commands(character)


def _stacked(name: str, width: int, side: str) -> str:
    """Return the name of a column for LaTeX, in several lines if it is wider than the column."""
    lines = textwrap.wrap(name, width, break_long_words=False, break_on_hyphens=False)
    stack = r" \\ ".join(map(escape, lines))
    return rf"\shortstack[{side}]{{{stack}}}" if len(lines) > 1 else stack


def _latex(cell: Cell) -> str:
    text = cell.tex or escape(cell.text)
    if text and "code" in cell.kind.split():
        text = rf"\texttt{{{text}}}"
    return rf"\textbf{{{text}}}" if "best" in cell.kind.split() else text


def _markdown(cell: Cell) -> str:
    text = cell.text.replace("|", r"\|")
    text = f"`{text}`" if text and "code" in cell.kind.split() else text
    text = f"**{text}**" if text and "best" in cell.kind.split() else text
    return f"[{text}]({cell.link})" if cell.link else text


def _value(cell: Cell, part: str) -> Any:
    return cell.values.get(part) if cell.values else (cell.text if not part else None)


def _plain(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
