"""The report of a study: one self-contained HTML file, and its tables as Markdown and CSV."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floater.encodings import catalogue
from floater.lab.settings import dump
from floater.lab.study import figures, panels, short_to_long, summary, tables
from floater.lab.study.results import Results
from floater.lab.study.trial import software
from floater.lab.training.files import write_whole

if TYPE_CHECKING:
    from markupsafe import Markup

REPORT = "report.html"
logger = logging.getLogger(__name__)


def write_report(results: Results, origin: str) -> Path:
    """Write the report of a study into its folder.

    Args:
        results: the study's results.
        origin: arguments of `floater study`, for the command that repeats it.

    Returns:
        The report; the same folder has `table.md`, `table.csv`, `trials.csv`, `scores.csv` and
        `comparisons.csv`.
    """
    folder = Path(results.settings.folder)
    if results.outcomes:
        write_whole(folder / "table.md", _markdown(results))
        write_whole(folder / "table.csv", tables.scores(results).csv())
        write_whole(folder / "trials.csv", tables.trials(results).csv())
        write_whole(folder / "scores.csv", tables.scores_csv(results))
        write_whole(folder / "comparisons.csv", tables.comparisons_csv(results))
    with figures.themed():
        sections = list(panels.positions(results))
    text = page(results, origin, sections, _versions(results), dump(results.settings))
    write_whole(folder / REPORT, text)
    logger.info("report: %s", folder / REPORT)
    return folder / REPORT


def page(
    results: Results,
    origin: str,
    positions: list[panels.Section],
    versions: Mapping[str, list[str]],
    configuration: str,
) -> str:
    """Return the report as HTML.

    Args:
        results: the study's results.
        origin: arguments of `floater study`.
        positions: the figures of positions.
        versions: versions of the packages that the trials ran with, and the machine, by name.
        configuration: the study's configuration, as text.
    """
    scores = tables.scores(results)
    with figures.themed():
        values: dict[str, Any] = {
            "settings": results.settings,
            "results": results,
            "sentences": summary.sentences(results) if results.outcomes else [],
            "answers": summary.answer(results) if results.outcomes else [],
            "answer": tables.answer(results)
            if results.settings.comparisons and results.comparisons
            else None,
            "scores": scores,
            "marks": {character for row in scores.rows for cell in row for character in cell.text},
            "others": {panels.heading(label): table for label, table in tables.others(results).items()},
            "compared": tables.compared(results) if results.comparisons else None,
            "trials": tables.trials(results),
            "drawn": figures.drawn(results),
            "lengths": list(panels.lengths(results)),
            "learning": list(panels.learning(results)),
            "costs": list(panels.costs(results)),
            "positions": positions,
            "notes": list(_notes(results)),
            "equations": _equations(results),
            "commands": [f"floater study {origin}"]
            + [f"floater train {shlex.quote(str(trial.config))}" for trial in results.grid.trials],
            "versions": versions,
            "signatures": _signatures(results),
            "configuration": configuration,
        }
    return render("report.html.jinja", values)


def render(template: str, values: Mapping[str, Any], package: str = "floater.lab.study") -> str:
    """Return a page in the style of the reports.

    Args:
        template: name of the template, which extends `page.html.jinja`.
        values: values that it reads.
        package: package that contains the template.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader(each, "") for each in dict.fromkeys((package, "floater.lab.study"))]
    environment = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _code
    return environment.get_template(template).render(values) + "\n"


def _code(text: str) -> Markup:
    """Return a sentence as HTML, with text between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _notes(results: Results) -> Iterator[str]:
    asked = results.settings.short_to_long
    if (
        asked.enabled
        and (share := short_to_long.share_below(asked, results.grid.folder / "data")) is not None
    ):
        yield share
    if asked.enabled and not asked.builtin and results.selects:
        yield f"The examples below {asked.cut} tokens are the validation part, which selected checkpoints."
    for name, texts in _signatures(results).items():
        if len(texts) > 1:
            yield f"Scores of {name} with different signatures are not compared: {'; '.join(texts)}."
    for outcome in results.outcomes:
        for test, measured in outcome.measured.items():
            yield from (f"{outcome.trial.name}, {test}: {note}." for note in measured.notes)


def _signatures(results: Results) -> dict[str, list[str]]:
    """Return the signatures of the scores by metric, several where packages differ between trials."""
    signatures: dict[str, list[str]] = {}
    for measured in (each for outcome in results.outcomes for each in outcome.measured.values()):
        for name, text in measured.signatures.items():
            if text not in signatures.setdefault(name, []):
                signatures[name].append(text)
    return signatures


def _equations(results: Results) -> list[tuple[str, str, str, str, str]]:
    encodings, equations = catalogue(), []
    for variant in results.grid.variants:
        if not variant.position:  # the task trains a checkpoint
            continue
        card = encodings[variant.position].card
        options = ", ".join(f"{name}={value}" for name, value in variant.options.items())
        start = "" if variant.start is None else f", started from {variant.start}"
        equations.append((variant.name, f"{variant.position}({options})", start, card.equation, card.paper))
    return equations


def _versions(results: Results) -> dict[str, list[str]]:
    """Return the devices and versions of the trials, or of this process if there is none."""
    versions: dict[str, list[str]] = {}
    for cost in [outcome.cost for outcome in results.outcomes if outcome.cost] or [software()]:
        machine = {name: cost.get(name) for name in ("device", "threads", "python")}
        for name, value in (machine | cost.get("versions", {}) | {"commit": cost.get("commit")}).items():
            if value is not None and str(value) not in versions.setdefault(name, []):
                versions[name].append(str(value))
    return versions


def _markdown(results: Results) -> str:
    settings = results.settings
    parts = [f"# {settings.title}", settings.question]
    if settings.scaled_from:
        parts.append(f"Scaled down from {settings.scaled_from}; no reproduction.")
    if settings.note:
        parts.append(settings.note)
    parts.append(tables.scores(results).markdown().rstrip())
    for label, table in tables.others(results).items():
        parts += [label, table.markdown().rstrip()]
    parts.append("\n".join(f"- {sentence}" for sentence in summary.sentences(results)))
    if settings.excluded:
        parts.append(
            "Not run: " + "; ".join(f"{name} ({why})" for name, why in settings.excluded.items()) + "."
        )
    return "\n\n".join(parts) + "\n"
