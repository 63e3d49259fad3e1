"""The catalogue as text: the table of encodings that `floater models` prints, and the description of one."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from floater.encodings import PositionError, StackSpec, catalogue, options
from floater.encodings.bibliography import Reference
from floater.encodings.card import CONTRACT, Stack
from floater.encodings.measure import count, measure
from floater.errors import DataError, nearest
from floater.lab.table import Cell, Table

LETTERS = "d is dim, h heads, l layers, t_max the training length"
_SITES: Mapping[str, tuple[Stack, ...]] = {
    "self": ("encoder", "causal"),
    "decoder": ("decoder",),
    "cross": ("cross",),
}
"""The stacks in which an encoding with a site acts."""
TEXT = (
    *("name", "year", "point", "injection", "recurring", "unbound", "parameters"),
    *("paper", "learnable", "kernel"),
)
PAGE = (
    *("name", "paper", "published", "structure", "point", "injection", "learnable", "recurring", "unbound"),
    *("beyond", "kernel", "cache", "models", "formula", "parameters"),
)
LATEX = ("name", "paper", "point", "injection", "learnable", "recurring", "unbound", "parameters")
"""Columns of the table as text, of which those are shown that fit, in Markdown, and in LaTeX."""


def columns(name: str, spec: StackSpec) -> dict[str, Any]:
    """Return the columns of the table for a position model; injection to unbound are measured.

    Args:
        name: name of a position model.
        spec: the sizes at which to count parameters.

    Raises:
        PositionError: if the name is unknown, or the model refuses the sizes.

    Example:
        >>> row = columns("learned", StackSpec(dim=512, heads=8, layers=6, max_length=512))
        >>> row["paper"], row["unbound"], row["parameters"], row["formula"]
        ('Devlin et al. 2019', False, 262144, 't_max * d')
    """
    defaults = options(name)  # refuses an unknown name
    card, measured = catalogue()[name].card, measure(name)
    try:
        parameters = sum(count(name, spec).values())
    except PositionError as error:
        raise PositionError(f"{name}: {error}") from error
    return {
        "name": name,
        "paper": card.paper,
        "link": card.link,
        "published": card.published,
        "year": card.year,
        "structure": card.structure,
        "point": card.point,
        "injection": measured.injection,
        "learnable": measured.learnable,
        "recurring": measured.recurring,
        "unbound": measured.unbound,
        "beyond": measured.beyond,
        "kernel": measured.kernel,
        "cache": "cache" not in card.exceptions,
        "parameters": parameters,
        "formula": card.parameters,
        "survey": card.survey.parameters if card.survey else "",
        "models": card.models,
        "stacks": stacks(name),
        "options": ", ".join(f"{option}={value!r}" for option, value in defaults.items()),
        "summary": summary(name),
        **_reference(card.references[0] if card.references else None),
    }


def _reference(reference: Reference | None) -> dict[str, str]:
    """Return the columns of a paper; empty without one."""
    fields = ("key", "title", "venue", "doi", "arxiv")
    authors = {"authors": ", ".join(reference.authors) if reference else ""}
    return authors | {field: getattr(reference, field, "") for field in fields}


def table(rows: Sequence[Mapping[str, Any]], shown: Sequence[str] | None = None) -> Table:
    """Return the table of some position models.

    Args:
        rows: the `columns` of each.
        shown: names of the columns to show; by default all.

    Raises:
        DataError: if there is no such column.

    Example:
        >>> rows = [columns("none", StackSpec(dim=512, heads=8, layers=6, max_length=512))]
        >>> print(table(rows, ["name", "paper", "unbound"]).text())
        name  paper                unbound
        none  Vaswani et al. 2017  no
    """
    shown = list(rows[0]) if shown is None else list(shown)
    for name in shown:
        if name not in rows[0]:
            raise DataError(f"there is no column '{name}'; {nearest(name, rows[0])}")
    align = "".join("r" if name == "parameters" else "l" for name in shown)
    return Table(shown, [[cell(row, name) for name in shown] for row in rows], align)


def cell(row: Mapping[str, Any], name: str) -> Cell:
    """Return the cell of a column of `columns`."""
    value = row[name]
    if name == "paper":
        return Cell(value, link=row["link"], tex=rf"\citet{{{row['key']}}}" if row["key"] else "")
    return Cell(_text(value), "code" if name == "formula" else "", {"": value})


def entry(name: str, spec: StackSpec, width: int = 110) -> str:
    """Return all that the catalogue has on one position model.

    Args:
        name: name of the model.
        spec: the sizes at which to count parameters.
        width: columns of the text.

    Raises:
        PositionError: if the name is unknown, or the model refuses the sizes.

    Example:
        >>> print(entry("none", StackSpec(dim=512, heads=8, layers=6, max_length=512)).splitlines()[0])
        none: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
    """
    row, model = columns(name, spec), catalogue()[name]
    card, needs, meanings = model.card, getattr(model, "needs", None), dict(arguments(name))
    starts = sum(size for key, size in count(name, spec).items() if key.endswith("start"))
    number = f"{row['parameters']:,} at dim {spec.dim}, {spec.heads} heads, {spec.layers} layers, "
    number += f"training length {spec.max_length}"
    if starts:
        number += f"; {starts:,} of them in start vectors, {row['parameters'] - starts:,} in the rest"
    facts = {
        "equation": card.equation,
        **{key: _text(row[key]) for key in ("published", "structure", "point", "injection", "learnable")},
        **{key: _text(row[key]) for key in ("recurring", "unbound", "beyond", "kernel", "cache")},
        **({"models": card.models} if card.models else {}),
        "parameters": number if row["formula"] == "0" else f"{row['formula']} = {number}",
        "stacks": row["stacks"],
        "recipe": card.recipe,
        **({"reads": f"Positions.{needs}"} if needs else {}),
    }
    defaults = {f"{option}={value!r}": meanings.get(option, "") for option, value in options(name).items()}
    differs = {
        cell: f"{_text(getattr(card.survey, cell))} in the survey: {why}"
        for cell, why in (card.survey.differs if card.survey else {}).items()
    }
    exceptions: dict[str, str] = {
        key: f"{why} (else: {CONTRACT[key]})" for key, why in card.exceptions.items()
    }
    parts: list[tuple[str, Mapping[str, str]]] = [
        ("", facts),
        ("Options", defaults),
        ("Differs from the survey", differs),
        ("Does not keep", exceptions),
        ("Keeps in memory", {"matrix of all pairs": card.pair_matrix} if card.pair_matrix else {}),
    ]
    lines = [f"{name}: {row['paper']}, {row['link']}"]
    lines += textwrap.wrap(f"“{row['title']}”, {row['venue'] or 'preprint'}", width) if row["title"] else []
    lines += ["", *textwrap.wrap(row["summary"], width)]
    for title, pairs in parts:
        if pairs:
            left = max(map(len, pairs)) + 2
            lines += ["", f"{title}:"] if title else [""]
            lines += [
                line
                for key, text in pairs.items()
                for line in textwrap.wrap(
                    f"  {key:<{left}}{text}", width, subsequent_indent=" " * min(left + 2, 24)
                )
            ]
    return "\n".join(lines)


def summary(name: str) -> str:
    """Return the first sentence of a position model's documentation.

    Example:
        >>> summary("frozen")
        'A pretrained table of positions that is not trained further.'
    """
    return " ".join((inspect.getdoc(catalogue()[name]) or "").split("\n\n")[0].split())


def stacks(name: str) -> str:
    """Return the stacks in which the paper of a position model uses it, and those in which it also acts here.

    Example:
        >>> stacks("tener")
        'encoder (named entities); beyond the paper: causal, decoder'
    """
    model = catalogue()[name]
    card = model.card
    acts = [stack for site in model.sites for stack in _SITES[site] if stack not in card.exceptions]
    if not card.stacks:
        return f"{', '.join(acts)}; in no paper"
    text = ", ".join(f"{stack} ({use})" for stack, use in card.stacks.items())
    beyond = [stack for stack in acts if stack not in card.stacks]
    missing = [stack for stack in card.stacks if stack not in acts]
    text += f"; beyond the paper: {', '.join(beyond)}" if beyond else ""
    return text + (f"; not here: {', '.join(missing)}" if missing else "")


def arguments(name: str) -> Iterator[tuple[str, str]]:
    """Return the options that a position model's documentation explains, and the text on each.

    Example:
        >>> dict(arguments("rotary"))["base"]
        'base of the frequencies, above 1.'
    """
    documentation = inspect.getdoc(catalogue()[name]) or ""
    section = re.search(r"^Args:\n((?: {4}.*\n?)+)", documentation, re.MULTILINE)
    entries = section[1] if section else ""
    for key, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", entries, re.MULTILINE):
        yield key, " ".join(text.split())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
