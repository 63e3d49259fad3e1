"""Tables 1 and 2 of Dufter, Schmitt, Schuetze 2022, beside what the code of this library measures."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from floater.encodings import catalogue
from floater.encodings.bibliography import references
from floater.encodings.card import SurveyRow
from floater.lab.cli.listing import cell
from floater.lab.table import Cell, Table

MEASURED = ("injection", "learnable", "recurring", "unbound")
_STRUCTURES = ("sequence", "tree", "graph")
TOPICS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "generic": {
        "absolute": (
            *("devlin2019bert", "kitaev2020reformer", "liu2020floater", "press2021shortformer"),
            "wang2020encoding",
        ),
        "both": ("shaw2018selfattention", "ke2021rethinking", "dufter2020increasing", "he2021deberta"),
        "relative": (
            *("dai2019transformerxl", "raffel2020exploring", "chang2021convolutions", "wu2021datransformer"),
            *("huang2020improve", "shen2018disan", "neishi2019relation", "liutkus2021relative"),
        ),
    },
    "sinusoidal": {
        "absolute": (
            *("vaswani2017attention", "dehghani2019universal", "li2019augmented", "likhomanenko2021cape"),
        ),
        "relative": ("yan2019tener", "su2021roformer"),
    },
    "graphs": {
        "absolute": ("shiv2019novel", "dwivedi2020generalization"),
        "both": ("wang2019structural", "zhang2020graphbert"),
        "relative": ("zhu2019modeling", "cai2020graph", "schmitt2021modeling"),
    },
    "decoder": {"absolute": ("takase2019positional", "oka2020incorporating", "bao2019pnat")},
    "crosslingual": {
        "absolute": (
            *("artetxe2020crosslingual", "ding2020crosslingual", "liu2021improving", "liu2021importance"),
        )
    },
    "analysis": {
        "absolute": ("yang2019assessing", "wang2020position"),
        "both": ("rosendahl2019analysis", "wang2021position", "chen2021simple"),
    },
}
"""Papers of the survey's Table 2 by topic and reference point."""


def table(rows: Sequence[Mapping[str, Any]], *, whole: bool = True) -> Table:
    """Return the survey's Table 1: measured cells, with the survey's in parentheses where they differ.

    Args:
        rows: columns of the encodings (`listing.columns`) that the survey has, in any order.
        whole: whether to include the columns that do not fit on a terminal: paper, structure, reference
        point.

    Example:
        >>> from floater.encodings import StackSpec
        >>> from floater.lab.cli.listing import columns
        >>> spec = StackSpec(dim=512, heads=8, layers=6, max_length=512)
        >>> print(table([columns(name, spec) for name in ("disan", "rotary")], whole=False).text())
        name    injection  learnable  recurring  unbound   #param
        disan   MAM        no         yes        no (yes)  0
        rotary  MAM        no         yes        yes       0
    """
    head = ["name", *(["paper", "structure", "point"] if whole else []), *MEASURED, "#param"]
    lines = []
    for row in sorted(rows, key=lambda row: _STRUCTURES.index(row["structure"])):
        survey = _survey(row["name"])
        differs = [survey.differs.get(name, "") for name in MEASURED]
        cells = [cell(row, name) for name in head if name not in (*MEASURED, "#param")]
        for name, reason in zip(MEASURED, differs, strict=True):
            cells.append(_compared(row[name], getattr(survey, name), reason))
        lines.append([*cells, _parameters(row, survey)])
    return Table(head, lines, "l" * len(head))


def _parameters(row: Mapping[str, Any], survey: SurveyRow) -> Cell:
    """Return the survey's number of parameters, with those of this library as values."""
    reason = survey.differs.get("parameters", "")
    plain = survey.parameters.replace(" ", "")
    shown = re.sub(r"(?<!max)(?<!\^2)\*", "", plain)  # factors side by side, as in the survey
    formula = re.sub(r"(?<=[dt])1", "_1", plain.replace("max", r"{\max}").replace("*", " "))
    tex = f"${formula}$"
    if "or" in plain:
        shown = tex = survey.parameters
    values = {"": row["parameters"], "formula": row["formula"], "survey": survey.parameters, "reason": reason}
    return Cell(shown + " *" * bool(reason), values=values, tex=tex + "*" * bool(reason))


def _compared(measured: Any, survey: Any, reason: str) -> Cell:
    text = _word(measured) + (f" ({_word(survey)})" if measured != survey else "")
    return Cell(text, values={"": measured, "survey": survey, "reason": reason})


def _survey(name: str) -> SurveyRow:
    survey = catalogue()[name].card.survey
    assert survey is not None
    return survey


def legend(names: Sequence[str], width: int) -> str:
    """Return the reasons why measured cells and counts differ from the survey's, as text.

    Args:
        names: names of encodings that the survey has.
        width: columns of the text.
    """
    head = "In parentheses the survey's cell where the measured one differs; * marks another number of "
    head += "parameters than the survey's, which is shown. The reasons:"
    lines = textwrap.wrap(head, width)
    for name in names:
        for column, reason in _survey(name).differs.items():
            line = f"{name}, {'#param' if column == 'parameters' else column}: {reason}"
            lines += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def topics() -> Table:
    """Return the survey's Table 2 in a row for each paper, with the encodings of this library.

    Example:
        >>> print(topics().text().splitlines()[1])
        generic       absolute  Devlin et al. 2019         bert_a, learned
    """
    encodings: dict[str, list[str]] = {}
    papers: dict[str, str] = {}
    for name, model in catalogue().items():
        for reference in model.card.references[:1]:
            encodings.setdefault(reference.key, []).append(name)
            papers[reference.key] = model.card.paper
    rows = []
    for topic, points in TOPICS.items():
        for point, keys in points.items():
            for key in keys:
                reference = references()[key]
                paper = papers.get(key) or f"{_surnames(reference.authors)} {reference.year}"
                names = Cell(", ".join(encodings.get(key, [])))
                rows.append(
                    [
                        Cell(topic),
                        Cell(point),
                        Cell(paper, link=(*reference.links, "")[0], tex=rf"\citet{{{key}}}"),
                        names,
                    ]
                )
    return Table(["topic", "point", "paper", "encodings"], rows, "llll")


def _surnames(authors: Sequence[str]) -> str:
    """Return the authors as a citation has them.

    Example:
        >>> _surnames(["Yu-An Wang", "Yun-Nung Chen"]), _surnames(["A B", "C D", "E F"])
        ('Wang and Chen', 'B et al.')
    """
    names = [author.split()[-1] for author in authors]
    return " and ".join(names) if len(names) < 3 else f"{names[0]} et al."


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
