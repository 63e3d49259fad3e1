"""A study as a whole: its scores, its states, its messages."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from floater.errors import DataError, install
from floater.lab.cli import main
from floater.lab.settings import dump
from floater.lab.study import run
from floater.lab.study.column import VALIDATION, Column
from floater.lab.study.results import Results
from floater.lab.study.settings import ShortToLong
from floater.lab.study.trial import read, software
from floater.lab.tasks import task
from floater.lab.training.lock import locked

from .small import ONE_STEP, SMALL_MODEL, run_inline, scores, settings

pytestmark = pytest.mark.usefixtures("short_translations")


@pytest.mark.filterwarnings("ignore::floater.lab.tasks.translation.CutTranslation")
def test_each_row_has_the_scores_of_its_seeds(finished: Results) -> None:
    """The numbers are those of `floater evaluate` on the same run."""
    variant = next(variant for variant in finished.grid.variants if variant.name == "learned-input")
    column = Column("lengths", "chrf", 80, 100)
    value = finished.value(variant, column)
    assert value is not None
    test = finished.grid.tests["lengths"]
    assert len(value.scores) == 2
    for seed, score in zip((1, 2), value.scores, strict=True):
        run_ = Path(finished.settings.folder) / "trials" / f"{variant.name}-{seed}"
        actual = task("translation").evaluate(run_, test["source"], reference=test["reference"])
        lengths = read(run_, "lengths").lengths
        chosen = [line for line, length in zip(actual.lines, lengths, strict=True) if 80 <= length < 100]
        written = (run_ / "measured" / "lengths.txt").read_text(encoding="utf-8").splitlines()
        assert [line for line, n in zip(written, lengths, strict=True) if 80 <= n < 100] == chosen
        assert finished.count(column) == len(chosen) == 3
        assert score == pytest.approx(read(run_, "lengths").score("chrf", (lengths >= 80) & (lengths < 100)))


def test_a_failed_trial_says_why_and_the_rest_goes_on(finished: Results) -> None:
    states = {outcome.trial.name: (outcome.status, outcome.error) for outcome in finished.outcomes}
    for seed in (1, 2):
        status, error = states.pop(f"broken-{seed}")
        assert status == "failed"
        assert error.startswith("a training pair, line 22 of ")
        assert "more than training.max_tokens, 30" in error
    assert {status for status, _ in states.values()} == {"finished"}


def test_less_of_a_likelihoods_negative_logarithm_is_better() -> None:
    better = {"nll": False, "loss": False, "accuracy": True, "exact": True, "bleu": True}
    assert {name: Column(VALIDATION, name).greater for name in better} == better


def test_a_test_set_of_lengths_without_bins_is_shown_whole(finished: Results) -> None:
    asked = replace(finished.settings, bins=[], short_to_long=ShortToLong())
    assert Results(asked, finished.grid, finished.outcomes).columns() == [Column("lengths", "bleu")]


def test_an_empty_bin_is_empty(finished: Results) -> None:
    empty = Column("lengths", "bleu", 900, 1000)
    assert finished.count(empty) == 0
    assert all(finished.value(variant, empty) is None for variant in finished.grid.variants)
    lines = [line.split(",") for line in scores(Path(finished.settings.folder)).splitlines()]
    assert {tuple(line[6:]) for line in lines if line[4:6] == ["900", "1000"]} == {("0", "")}


def test_finished_trials_are_not_run_again(finished: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(finished.settings.folder)
    started = run_inline(monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in (folder / "trials" / "none-1").rglob("*")}
    table = scores(folder)
    again = run.study(finished.settings, "small.yaml")
    assert started.started == [o.trial.name for o in again.outcomes if o.status == "failed"]
    assert {path: path.stat().st_mtime_ns for path in (folder / "trials" / "none-1").rglob("*")} == before
    assert scores(folder) == table


def test_windows_of_a_causal_model_are_scored_by_what_was_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text"
    text.write_text("so it is a b c\n" * 60, encoding="utf-8")
    files = {"train": str(text), "valid": str(text), "documents": "file"}
    common = {
        "data": files | {"block": 16, "vocabulary_size": 280},
        "model": SMALL_MODEL,
        "training": ONE_STEP,
    }
    asked = settings(
        tmp_path / "study",
        task="language_modeling",
        settings=common,
        seeds=[1],
        short_to_long={},
        tests={"near": {"source": str(text)}, "far": {"source": str(text), "window": 64}},
        bins=[16, 32],
    )
    run_inline(monkeypatch)
    actual = run.study(asked)
    cells = [(column.test, column.metric, column.bin_label) for column in actual.columns(None)]
    far = [(metric, bin) for metric in ("loss", "excess") for bin in ("", "< 16", "16–31", "≥ 32")]
    assert cells == [("near", "loss", ""), *(("far", metric, bin) for metric, bin in far)]
    assert actual.lengths == "tokens read before"
    assert {*actual.metrics["far"]} == {*actual.grid.task.metrics}
    assert all(
        actual.value(variant, column) for variant in actual.grid.variants for column in actual.columns(None)
    )
    page = (tmp_path / "study" / "table.md").read_text(encoding="utf-8")
    assert "loss beyond that of the training length" in page


def test_a_study_runs_once_at_a_time_and_is_reported_meanwhile(
    finished: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Results] = []
    monkeypatch.setattr(run, "write_report", lambda results, *_: reported.append(results))
    with locked(Path(finished.settings.folder)):
        with pytest.raises(DataError, match="is in use by process"):
            run.study(finished.settings)
        run.study(finished.settings, train=False)
    (seen,) = reported
    assert [o.status for o in seen.outcomes] == [o.status for o in finished.outcomes]


def test_the_report_of_a_study_from_a_pipe_names_a_file_that_stays(
    finished: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    monkeypatch.setattr(run, "write_report", lambda results, command: commands.append(command))
    pipe, end = os.pipe()
    os.write(end, dump(finished.settings).encode())
    os.close(end)
    main(["study", f"/dev/fd/{pipe}", "--report"])
    os.close(pipe)
    assert commands == [str(Path(finished.settings.folder) / "study.yaml")]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such.yaml"], "no-such.yaml"),
        (["CONFIG", "seeds=[]"], "at least one seed"),
        (["CONFIG", "models.sinusoidl={}"], "trial sinusoidl-1: unknown position model 'sinusoidl'"),
        (["CONFIG", "budget.core=2"], "did you mean 'budget.cores'?"),
        (["CONFIG", "launcher=ray"], install("ray")),
        (["CONFIG", "folder=''"], "folder is ''; it must name a directory"),
        (["CONFIG", "budget.trial_memory=900000"], "no room for a trial"),
    ],
)
def test_what_a_person_did_wrong_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    named: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    config = tmp_path / "small.yaml"
    config.write_text(dump(settings(tmp_path / "study")), encoding="utf-8")
    assert main(["study", *(argument.replace("CONFIG", str(config)) for argument in arguments)]) == 2
    said = capsys.readouterr().err
    assert named.lower() in said.lower()
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "study" / "trials").exists()


def test_the_directory_of_a_run_is_no_study(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: translation\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"holds a run \(its config.yaml\)"):
        run.study(settings(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_the_commit_is_that_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    here, flow = tmp_path / "floater" / "lab" / "study" / "trial.py", tmp_path / "floater" / "flow.py"
    here.parent.mkdir(parents=True)
    here.write_text("one", encoding="utf-8")
    flow.write_text("one", encoding="utf-8")
    monkeypatch.setattr("floater.lab.study.trial.__file__", str(here))
    assert software()["commit"] is None
    git("init")
    git("add", "floater/flow.py")
    git("commit", "-m", "of another project that it is installed in")
    assert software()["commit"] is None
    git("add", "floater")
    git("commit", "-m", "one")
    assert software()["commit"] == git("rev-parse", "--short", "HEAD")
    flow.write_text("two", encoding="utf-8")
    assert software()["commit"] == git("rev-parse", "--short", "HEAD") + "+"


def test_the_study_is_written_down_as_it_was_run(finished: Results) -> None:
    text = (Path(finished.settings.folder) / "study.yaml").read_text(encoding="utf-8")
    assert text.startswith(f"# floater study {finished.settings.folder}/study.yaml\n")
    assert yaml.safe_load(text)["bins"] == finished.settings.edges


def test_a_configuration_in_the_folder_of_its_study_keeps_its_comments(
    finished: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(monkeypatch, report=False)
    file = Path(finished.settings.folder) / "study.yaml"
    before = file.read_text(encoding="utf-8")
    mine = before + "# mine\n"
    file.write_text(mine, encoding="utf-8")
    run.study(finished.settings)
    assert file.read_text(encoding="utf-8") == mine
    run.study(replace(finished.settings, title="Other"))
    assert file.read_text(encoding="utf-8") == before.replace(finished.settings.title, "Other")
    run.study(finished.settings)
    assert file.read_text(encoding="utf-8") == before


def test_a_study_with_a_failed_trial_ends_with_code_1(
    finished: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual, config = [finished], tmp_path / "small.yaml"
    config.write_text("folder: small\nmodels: {none: {}}\n", encoding="utf-8")
    monkeypatch.setattr(run, "study", lambda *_, **__: actual[0])
    assert main(["study", str(config)]) == 1
    actual[0] = replace(finished, outcomes=[o for o in finished.outcomes if o.status == "finished"])
    assert main(["study", str(config)]) == 0
