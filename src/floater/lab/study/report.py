"""The report of a study: one self-contained HTML file, and its tables as Markdown and CSV."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floater.encodings import catalogue
from floater.encodings import options as default_options
from floater.encodings.composed.compose import Compose
from floater.encodings.composed.parts import Composite, Named, named
from floater.lab.citations import citation, study_trees
from floater.lab.settings import dump
from floater.lab.study import figures, panels, short_to_long, summary, tables
from floater.lab.study.per_example import PER_EXAMPLE, write_examples
from floater.lab.study.results import Results
from floater.lab.study.trial import software
from floater.lab.training.files import write_whole

if TYPE_CHECKING:
    from markupsafe import Markup

REPORT, FIGURES, TUNING = "report.html", "figures", "tuning.csv"
logger = logging.getLogger(__name__)


def write_report(results: Results, origin: str) -> Path:
    """Write the report of a study into its folder, with its tables, figures and references for a paper.

    A file of an earlier report that says something else is replaced or removed, and a message names it.

    Args:
        results: the study's results.
        origin: arguments of `floater study`, for the command that repeats it.

    Returns:
        The report; beside it are `table.md`, `table.csv`, `table.tex` (LaTeX with booktabs), `trials.csv`,
        `scores.csv`, `comparisons.csv`, `tuning.csv` of a tuned study, `examples.npz` (see
        `write_examples`), `references.bib`, and `figures/` with each figure as PDF and SVG.
    """
    folder = Path(results.settings.folder)
    texts = {"references.bib": _citation(results) + "\n"}
    if results.outcomes:
        texts |= {
            "table.md": _markdown(results),
            "table.csv": tables.scores(results).csv(),
            "table.tex": _latex(results),
            "trials.csv": tables.trials(results).csv(),
            "scores.csv": tables.scores_csv(results),
            "comparisons.csv": tables.comparisons_csv(results),
        }
    if results.grid.tried:
        texts[TUNING] = tables.tuning(results).csv()
    charts = panels.charts(results)
    with figures.themed():
        sections = list(panels.positions(results))
    texts[REPORT] = page(results, origin, sections, _versions(results), dump(results.settings), charts)
    changed = [name for name, text in texts.items() if _differs(folder / name, text)]
    for name, text in texts.items():
        write_whole(folder / name, text)
    # what an earlier report had to say, and this one has not
    gone = [] if results.grid.tried else [TUNING]
    if any(outcome.measured for outcome in results.outcomes):
        write_examples(results, folder / PER_EXAMPLE)
    else:
        gone.append(PER_EXAMPLE)
    for name in gone:
        if (folder / name).is_file():
            (folder / name).unlink()
            changed.append(name)
    (folder / FIGURES).mkdir(exist_ok=True)
    for panel in [*charts.lengths, *charts.learning, *charts.costs, *(p for s in sections for p in s.panels)]:
        figures.save(panel.figure, folder / FIGURES / panel.name)
    if changed:
        logger.info("replaced or removed, as the earlier report differs: %s", ", ".join(changed))
    logger.info("report: %s", folder / REPORT)
    return folder / REPORT


def _differs(file: Path, text: str) -> bool:
    """Return whether a file exists and has another text."""
    return file.is_file() and file.read_bytes() != text.encode()


def page(
    results: Results,
    origin: str,
    positions: list[panels.Section],
    versions: Mapping[str, list[str]],
    configuration: str,
    charts: panels.Charts | None = None,
) -> str:
    """Return the report as HTML.

    Args:
        results: the study's results.
        origin: arguments of `floater study`.
        positions: the figures of positions.
        versions: versions of the packages that the trials ran with, and the machine, by name.
        configuration: the study's configuration, as text.
        charts: the figures of scores; by default they are drawn.
    """
    scores = tables.scores(results)
    charts = panels.charts(results) if charts is None else charts
    axis, by_axis = tables.by_axis(results)
    with figures.themed():
        values: dict[str, Any] = {
            "settings": results.settings,
            "results": results,
            "sentences": summary.sentences(results) if results.outcomes else [],
            "answers": summary.answer(results) if results.outcomes else [],
            "answer": tables.answer(results) if results.asked and results.comparisons else None,
            "scores": scores,
            "stacks": any(outcome.cost.get("position_parameters_of_a_stack") for outcome in results.outcomes),
            "legend": tables.legend(results, scores),
            "axis": axis,
            "by_axis": {panels.heading(label): table for label, table in by_axis.items()},
            "others": {panels.heading(label): table for label, table in tables.others(results).items()},
            "compared": tables.compared(results) if results.comparisons else None,
            "tuning": tables.tuning(results) if results.grid.tried else None,
            "tuned": summary.tuned(results) if results.grid.tried else [],
            "trials": tables.trials(results),
            "drawn": figures.shown_variants(results),
            "lengths": charts.lengths,
            "learning": charts.learning,
            "costs": charts.costs,
            "positions": positions,
            "notes": list(_notes(results)),
            "equations": _equations(results),
            "commands": [f"floater study {origin}"]
            + [f"floater train {shlex.quote(str(trial.config))}" for trial in results.grid.trials],
            "versions": versions,
            "signatures": _signatures(results),
            "configuration": configuration,
            "citation": _citation(results),
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
    environment.filters |= {"code": _code, "bound": _bound}
    return environment.get_template(template).render(values) + "\n"


def _code(text: str) -> Markup:
    """Return a sentence as HTML, with text between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_bound(text)))))


def _bound(text: str) -> str:
    """Return a text in which no line ends between a sign and its number, nor within a range."""
    return re.sub(r"([<≥]) (?=\d)", "\\1\u00a0", re.sub(r"(?<=\d)–(?=\d)", "\u2060–\u2060", text))


def _notes(results: Results) -> Iterator[str]:
    asked = results.settings.short_to_long
    if (
        asked.enabled
        and (share := short_to_long.share_below(asked, results.grid.folder / "data")) is not None
    ):
        yield share
    if asked.enabled and not asked.builtin and results.selects:
        yield f"The examples below {asked.cut} tokens are the validation part, which selected checkpoints."
    for test in results.validating:
        if results.selects:
            yield f"Test set {test} is also the validation, which selected checkpoints."
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
        start = "" if variant.start is None else f", started from {variant.start}"
        for name, options in _acting(variant.position, variant.options):
            card = encodings[name].card
            listed = ", ".join(f"{key}={value}" for key, value in options.items())
            equations.append((variant.name, f"{name}({listed})", start, card.equation, card.paper))
    return equations


def _acting(name: str, options: Mapping[str, Any]) -> Iterator[Named]:
    """Yield the encodings that act in a variant: of a combination its parts, and itself if it chooses blocks.

    Example:
        >>> parts = ["alibi", {"name": "mix", "other": "rotary"}]
        >>> [name for name, _ in _acting("compose", {"models": parts})]
        ['alibi', 'mix', 'rotary', 'rotary']
    """
    encoding = catalogue()[name]
    if encoding is not Compose:
        yield name, dict(options)
    if issubclass(encoding, Composite):
        for part in map(named, encoding.named_parts(default_options(name) | dict(options))):
            yield from _acting(*part)


def _versions(results: Results) -> dict[str, list[str]]:
    """Return the devices and versions of the trials, or of this process if there is none."""
    versions: dict[str, list[str]] = {}
    for cost in [outcome.cost for outcome in results.outcomes if outcome.cost] or [software()]:
        machine = {name: cost.get(name) for name in ("device", "threads", "python")}
        machine |= cost.get("hardware", {})
        for name, value in (machine | cost.get("versions", {}) | {"commit": cost.get("commit")}).items():
            if value is not None and str(value) not in versions.setdefault(name, []):
                versions[name].append(str(value))
    return versions


def _citation(results: Results) -> str:
    """Return the BibTeX entries of the encodings, the data sets and the software of a study."""
    return citation(study_trees(asdict(results.settings)))


def _latex(results: Results) -> str:
    """Return the tables of scores in LaTeX, each in a float with its caption."""
    settings, scores = results.settings, tables.scores(results)
    parts = [scores, *tables.others(results).values()]
    captions = [f"{settings.title}. {tables.legend(results, scores)}"]
    captions += [f"{settings.title}: {label}." for label in tables.others(results)]
    texts = [table.latex(caption) for table, caption in zip(parts, captions, strict=True)]
    return "% needs \\usepackage{booktabs}, and longtable for more than 40 rows\n" + "\n".join(texts)


def _markdown(results: Results) -> str:
    settings = results.settings
    parts = [f"# {settings.title}", settings.question]
    if settings.scaled_from:
        parts.append(f"Scaled down from {settings.scaled_from}; no reproduction.")
    if settings.note:
        parts.append(settings.note)
    scores = tables.scores(results)
    parts += [scores.markdown().rstrip(), tables.legend(results, scores)]
    for label, table in tables.others(results).items():
        parts += [label, table.markdown().rstrip()]
    parts.append("\n".join(f"- {sentence}" for sentence in summary.sentences(results)))
    if settings.excluded:
        parts.append(
            "Not run: " + "; ".join(f"{name} ({why})" for name, why in settings.excluded.items()) + "."
        )
    return "\n\n".join(parts) + "\n"
