"""The report: what it says, that it needs nothing else, and what a browser makes of it."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
import torch

from floater.encodings import catalogue
from floater.encodings.bibliography import read
from floater.errors import DataError
from floater.lab.settings import make
from floater.lab.study import report as reports
from floater.lab.study import run, summary, tables
from floater.lab.study.column import Column
from floater.lab.study.grid import grid
from floater.lab.study.panels import learning
from floater.lab.study.per_example import PER_EXAMPLE, read_examples
from floater.lab.study.results import Results, gather
from floater.lab.study.settings import StudySettings
from floater.transformer import FloaterConfig, FloaterForMaskedLM

from . import browser, small
from .made_up import build_study


@pytest.fixture(scope="module")
def report(finished: Results) -> Path:
    return Path(finished.settings.folder) / "report.html"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_it_refers_to_nothing_outside(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    for attribute, address in re.findall(r'\b(src|href|action|data)="([^"]*)"', text):
        assert address.startswith(("data:", "#")), f"{attribute} {address[:80]}"
    assert not re.search(r"url\((?!#)|@import|<script|<iframe|<link(?! rel=\"icon\" href=\"data:)", text)


def test_it_says_how_to_get_it_again(report: Path, finished: Results) -> None:
    text = report.read_text(encoding="utf-8")
    assert "floater study small.yaml" in text
    for trial in finished.grid.trials:
        assert f"floater train {trial.config}" in text
    for said in ("torch", "sacrebleu", "nrefs:1|case:mixed", "builtin_test: 3"):
        assert said in text


def test_pictures_whose_numbers_no_table_has_do_not_say_so(report: Path) -> None:
    said = re.findall(r'role="img" aria-label="([^"]*)"', report.read_text(encoding="utf-8"))
    for title, tabled in (("Training loss", False), ("BLEU by length", True), ("BLEU 80–99 and speed", True)):
        texts = [text for text in said if text.startswith(title)]
        assert texts
        assert all(("The tables have the numbers." in text) == tabled for text in texts)


def test_a_loss_that_chose_the_checkpoint_is_drawn_once(finished: Results) -> None:
    log = [{"step": 1, "loss": 2.0}, {"step": 1, "eval_loss": 1.0}]
    outcomes = [replace(o, log=log, result={"best_valid_loss": 1.0}) for o in finished.outcomes]
    titles = [panel.title for panel in learning(replace(finished, outcomes=outcomes))]
    assert titles == ["Training loss", "Validation loss"]


def test_the_figure_of_a_validation_says_what_was_scored(finished: Results) -> None:
    """The caption says which weights were validated and how many translations did not end."""
    log = [
        {"step": step, "eval_loss": 1.0, "eval_bleu": 9.0, "eval_cut_translations": step} for step in (1, 3)
    ]
    results = replace(finished, outcomes=[replace(outcome, log=log) for outcome in finished.outcomes])
    captions = {panel.title: panel.caption for panel in learning(results)}
    assert "up to 3 translations did not end" in captions["Validation BLEU"]
    assert "did not end" not in captions["Validation loss"]
    last = results.outcomes[0].trial.settings.training.average_last
    assert (f"mean of the last {last} checkpoints" in captions["Validation BLEU"]) == (last > 0)


def test_encodings_that_act_together_have_an_equation_each(tmp_path: Path) -> None:
    composed = {"position": ["alibi", {"name": "sinusoidal", "injection": "cross"}]}
    asked = small.settings(tmp_path, models={"both": composed})
    text = reports.page(
        gather(asked, grid(asked, "small")), origin="small.yaml", positions=[], versions={}, configuration=""
    )
    shown = text[text.index('<table id="models"') :]
    for name, option in (("alibi", ""), ("sinusoidal", "injection=cross")):
        assert f"{name}({option})" in shown
        assert escape(catalogue()[name].card.equation) in shown
    assert catalogue()["compose"].card.equation not in shown


def test_a_note_stands_before_the_answer(finished: Results) -> None:
    noted = replace(finished, settings=replace(finished.settings, note="Withdrawn: `t5` & <b>."))
    text = reports.page(noted, origin="small.yaml", positions=[], versions={}, configuration="")
    assert "Withdrawn: <code>t5</code> &amp; &lt;b&gt;." in text[: text.index("<h2>Answer</h2>")]


@pytest.mark.parametrize(("average", "said"), [(0, True), (1, False)])
def test_it_says_when_the_first_bin_selected_checkpoints(tmp_path: Path, average: int, said: bool) -> None:
    for language in "en", "de":
        (tmp_path / f"pool.{language}").write_text("".join(f"{'a ' * n}{n}\n" for n in range(12)))
    asked = small.settings(
        tmp_path / "study",
        settings={"training": {**small.ONE_STEP, "average_last": average}},
        short_to_long={"source": [f"{tmp_path}/pool.en"], "target": [f"{tmp_path}/pool.de"], "cut": 8},
        bins=[8],
    )
    results = gather(asked, grid(asked, "small"))
    page = reports.page(results, origin="small.yaml", positions=[], versions={}, configuration="")
    assert ("below 8 tokens are the validation part, which selected checkpoints" in page) == said


def test_an_error_in_a_report_is_text(report: Path) -> None:
    """Whatever an error says, it is no markup."""
    assert "failed: a training pair, line 22 of " in report.read_text(encoding="utf-8")
    cell = tables.Cell("<b>&", "failed")
    assert tables.Table(["a"], [[tables.Cell("x|y")]]).markdown().splitlines()[2] == r"| x\|y |"
    assert tables.Table(["a"], [[cell]]).csv() == "a\n<b>&\n"


def test_the_tables_agree_with_each_other(finished: Results) -> None:
    folder = Path(finished.settings.folder)
    scores = rows(folder / "scores.csv")
    done = [outcome for outcome in finished.outcomes if outcome.status == "finished"]
    assert len(scores) == len(done) * 5 * 7  # metrics, bins
    shown = {variant["model"]: variant for variant in rows(folder / "table.csv")}
    assert list(shown) == [variant.name for variant in finished.grid.variants]
    for name, variant in shown.items():
        values = [
            float(line["score"])
            for line in scores
            if (line["model"], line["metric"], line["low"]) == (name, "bleu", "80")
        ]
        if values:
            assert float(variant["BLEU 80–99"]) == pytest.approx(sum(values) / 2)
            assert float(variant["BLEU 80–99 std"]) == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
        else:
            assert variant["BLEU 80–99"] == variant["BLEU 80–99 std"] == ""
        assert variant["seeds"] == ("0" if name == "broken" else "2")
    assert {variant["BLEU 900–999"] for variant in shown.values()} == {""}
    lines = rows(folder / "trials.csv")
    assert [row["trial"] for row in lines] == [trial.name for trial in finished.grid.trials]
    markdown = (folder / "table.md").read_text(encoding="utf-8")
    for name in shown:
        assert f"\n| {name} | " in markdown
    parameters = {variant["model"]: variant["position parameters"] for variant in rows(folder / "table.csv")}
    assert parameters["learned-input"] == str(2 * 1024 * 16)  # a table for the encoder, one for the decoder
    assert parameters["learned-all"] == str((2 + 1) * 1024 * 16)  # of two blocks and of one


@pytest.mark.parametrize("seeds", [[1], [1, 2]])
def test_tables_for_a_paper_explain_their_marks(seeds: list[int]) -> None:
    """Bold means, a spread and the marks are explained where there are some, and only there."""
    actual = build_study(["none", "a"], seeds, lambda variant, seed: np.full(400, variant == "a"))
    shown, latex = reports._markdown(actual), reports._latex(actual)
    assert "\n| a | **100.0" in shown
    for text, marks in ((shown, "▲ better, ▼ worse than none"), (latex, r"$\bigtriangleup$ better")):
        assert "the best mean is bold." in text
        assert marks in text
        assert ("standard deviation" in text) == (len(seeds) > 1)
    level = build_study(["none", "a"], seeds, lambda variant, seed: np.ones(400))
    for text in (reports._markdown(level), reports._latex(level)):
        assert "bold" not in text.replace("textbf", "")
        assert not re.search("▲|bigtriangle", text)


def test_every_score_follows_from_the_stored_examples(finished: Results) -> None:
    folder = Path(finished.settings.folder)
    stored = read_examples(folder / PER_EXAMPLE)
    recomputed = 0
    for line in rows(folder / "scores.csv"):
        measurement = stored[line["model"], int(line["seed"]), line["test"]]
        low, high = int(line["low"] or 0), float(line["high"] or "inf")
        score = measurement.score(line["metric"], (measurement.lengths >= low) & (measurement.lengths < high))
        assert (score is None) == (line["score"] == "")
        if score is not None:
            assert score == pytest.approx(float(line["score"]), rel=1e-12)
            recomputed += 1
    assert recomputed > 100


def test_it_has_what_a_paper_needs(finished: Results) -> None:
    folder = Path(finished.settings.folder)
    figures = {path.name for path in (folder / "figures").iterdir()}
    assert {"length-lengths.pdf", "learning-loss.svg", "cost-memory_mib.pdf"} <= figures
    assert {"similarity-learned-all.pdf", "vectors-learned-input.svg"} <= figures
    for path in (folder / "figures").glob("*.svg"):
        assert not re.search(r"#0[1-4]0[1-4]0\d|var\(", path.read_text(encoding="utf-8")), "placeholders"
    latex = (folder / "table.tex").read_text(encoding="utf-8")
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len({line.count("&") for line in rows[: len(finished.grid.variants) + 1]}) == 1
    assert latex.isascii()
    assert rows[0].startswith(r"model & BLEU \textless{} 80 & BLEU 80--99")
    entries = read((folder / "references.bib").read_text(encoding="utf-8"))
    assert {"devlin2019bert", "vaswani2017attention", "post2018call", "floater"} <= entries.keys()
    assert "@misc{floater," in (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no files of figures, of which `report` has all."""
    monkeypatch.setattr("floater.lab.study.figures.save", lambda *_: None)


def without_figures(finished: Results, folder: Path) -> Results:
    """Return the results of a study for a report in another folder."""
    return replace(finished, settings=replace(finished.settings, folder=str(folder), figures=[]))


@pytest.mark.usefixtures("without_files")
def test_a_second_report_says_what_it_replaces(
    finished: Results, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    moved = without_figures(finished, tmp_path)
    reports.write_report(moved, "small.yaml")
    assert "differ" not in caplog.text
    reports.write_report(moved, "small.yaml")
    assert "differ" not in caplog.text, "the same report again"
    (tmp_path / "table.csv").write_text("my notes")
    reports.write_report(moved, "small.yaml")
    assert "replaced or removed, as the earlier report differs: table.csv\n" in caplog.text


@pytest.mark.usefixtures("without_files")
def test_what_a_report_has_no_more_is_removed(
    finished: Results, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    moved = without_figures(finished, tmp_path)
    reports.write_report(moved, "small.yaml")
    (tmp_path / "tuning.csv").write_text("of a tuned study")
    assert (tmp_path / "examples.npz").is_file()
    reports.write_report(replace(moved, outcomes=[]), "small.yaml")
    assert not (tmp_path / "tuning.csv").exists()
    assert not (tmp_path / "examples.npz").exists()
    assert "tuning.csv, examples.npz" in caplog.text


@pytest.mark.parametrize("file", ["result.json", "cost.json", "measured/{test}.json"])
def test_a_damaged_record_of_a_trial_is_named(finished: Results, tmp_path: Path, file: str) -> None:
    folder = tmp_path / "study"
    shutil.copytree(finished.settings.folder, folder)
    outcome = next(each for each in finished.outcomes if each.measured)
    damaged = folder / "trials" / outcome.trial.name / file.format(test=next(iter(outcome.measured)))
    damaged.write_text("")
    moved = [replace(each, folder=folder) for each in finished.grid.trials]
    with pytest.raises(DataError, match=f"{damaged.name} is damaged"):
        gather(replace(finished.settings, folder=str(folder)), replace(finished.grid, trials=moved))


def test_the_machine_is_in_the_report(finished: Results, report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    hardware = next(outcome.cost["hardware"] for outcome in finished.outcomes if outcome.cost)
    for name in ("CPU", "cores", "memory", "BLAS"):
        assert f"<dt>{name}</dt><dd>{escape(str(hardware[name]))}</dd>" in text


def test_the_sentences_say_what_is_known(finished: Results) -> None:
    said = summary.sentences(finished)
    assert said[0] == "6 of 8 trials are finished, 2 failed; the others are excluded below."
    assert "BLEU 900–999: the test set has no example there." in said
    compared = [
        actual for actual in finished.comparisons if actual.column == Column("lengths", "bleu", 80, 100)
    ]
    assert [actual.variant for actual in compared] == ["learned-input", "learned-all"]
    assert "Holm" in said[-1]


@pytest.mark.slow
def test_checkpoints_without_trials_have_a_report(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = FloaterForMaskedLM(FloaterConfig.preset("tiny", vocab_size=9, position="learned"))
    model.save_pretrained(tmp_path / "mine")
    tree = {"folder": str(tmp_path / "study"), "checkpoints": {"mine": str(tmp_path / "mine")}}
    run.study(make(StudySettings, tree | {"figures": ["vectors"]}, "given"))
    text = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "Heat map of the position vectors" in text
    assert "are in the figures" not in text


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390, 320])
def test_a_browser_shows_it(
    page: browser.Page, report: Path, finished: Results, width: int, dark: bool
) -> None:
    page.open(report, width=width, height=800, dark=dark)
    assert page.errors == []
    assert [asked for asked in page.requests if not asked.startswith("data:")] == [report.as_uri()]
    assert page.ask("document.querySelectorAll('#grid tbody tr').length") == len(finished.grid.trials)
    assert page.ask("document.querySelectorAll('#scores tbody tr').length") == len(finished.grid.variants)
    assert page.ask("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
    pictures = page.ask(
        "[...document.querySelectorAll('svg, img')].filter(e => !e.closest('svg svg')).map(e => {"
        " const box = e.getBoundingClientRect();"
        " return [box.width, box.height, e.getAttribute('aria-label') || e.getAttribute('alt') || ''] })"
    )
    assert len(pictures) >= 8
    for wide, high, alternative in pictures:
        assert min(wide, high) > 100
        assert len(alternative) > 20
    text = page.ask(
        "Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height))"
    )
    assert text > 5, "text in pictures can be read"
    figures = page.ask("[...document.querySelectorAll('figure')].map(e => e.scrollWidth - e.clientWidth)")
    assert max(figures) <= 0, "no figure scrolls sideways"
    assert page.ask("document.querySelector('#answer, .sentences').getBoundingClientRect().top < innerHeight")


def named_at_length(finished: Results, folder: Path) -> Path:
    """Return the report of a study in which a model has a long name."""
    first, *rest = finished.grid.variants
    long = replace(first, name="-".join(["a", "long", "name"] * 8))
    grid = replace(finished.grid, variants=[long, *rest])
    outcomes = [
        replace(o, trial=replace(o.trial, variant=long)) if o.trial.variant is first else o
        for o in finished.outcomes
    ]
    file = folder / "report.html"
    named = replace(finished, grid=grid, outcomes=outcomes)
    file.write_text(reports.page(named, "small.yaml", [], {}, ""), encoding="utf-8")
    return file


def test_a_long_name_does_not_hide_the_scores(page: browser.Page, finished: Results, tmp_path: Path) -> None:
    page.open(named_at_length(finished, tmp_path), width=1280)
    first = "document.querySelector('#scores th[scope=row]').getBoundingClientRect().width"
    assert page.ask(first) < 320


def test_it_is_printed_whole(page: browser.Page, finished: Results, tmp_path: Path) -> None:
    """The columns fit on a page in landscape, and what is folded up on the screen is there."""
    page.open(named_at_length(finished, tmp_path), width=1047)  # of A4 less its margins, at 96 dots an inch
    page.call("Emulation.setEmulatedMedia", media="print")
    width = "document.querySelector('#scores').getBoundingClientRect().right"
    assert page.ask(width) <= 1047
    height = "document.querySelector('#comparisons tbody td').getBoundingClientRect().height"
    assert page.ask(height) > 0


def test_dark_is_dark(page: browser.Page, report: Path) -> None:
    """Ink against paper, of the page and in its pictures: at least 7 to 1 (WCAG 2.2, 1.4.6)."""
    contrast = """(() => {
      const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
        .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
      const [a, b] = [getComputedStyle(document.querySelector('svg text')).fill,
        getComputedStyle(document.querySelector('figure')).backgroundColor].map(light);
      return [a, b] })()"""
    for dark in (False, True):
        page.open(report, dark=dark)
        ink, paper = page.ask(contrast)
        assert (ink > paper) == dark
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 7
