"""GLUE as a study: tasks x rates x seeds of checkpoints, and the table of the papers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from floater.errors import DataError
from floater.lab.settings import SettingsError, dump, make
from floater.lab.study import glue_curves, glue_table, run
from floater.lab.study.grid import grid
from floater.lab.study.settings import StudySettings

from .small import run_inline

TABLE2 = {  # Ke et al. 2021, Table 2, BERT-A
    "MNLI": (84.93, 84.91),
    "QNLI": (91.34,),
    "QQP": (91.04,),
    "SST-2": (92.88,),
    "CoLA": (55.19,),
    "MRPC": (88.29,),
    "RTE": (68.61,),
    "STS-B": (89.43,),
}


def study(tmp_path: Path, **changes: Any) -> StudySettings:
    for path in (tmp_path / task / f"{split}.tsv" for task in ("CoLA", "RTE") for split in ("train", "dev")):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    asked: dict[str, Any] = {
        "folder": str(tmp_path / "study"),
        "task": "glue",
        "settings": {"data": {"folder": str(tmp_path)}, "model": {"path": str(tmp_path)}},
        "models": {"plain": {}, "flow": {"settings": {"plug": {"options": {}}}}},
        "axes": {
            "task": {
                "CoLA": {"data": {"task": "CoLA"}},
                "RTE": {"data": {"task": "RTE"}, "training": {"num_train_epochs": 5}},
            },
            "rate": {rate: {"training": {"learning_rate": float(rate)}} for rate in ("2e-5", "3e-5")},
        },
        "seeds": [1, 2],
        "figures": [],
    }
    return make(StudySettings, asked | changes, "here")


def test_models_tasks_rates_and_seeds_multiply(tmp_path: Path) -> None:
    study_grid = grid(study(tmp_path), "here")
    names = [f"{m}-{t}-{r}" for m in ("plain", "flow") for t in ("CoLA", "RTE") for r in ("2e-5", "3e-5")]
    assert [variant.name for variant in study_grid.variants] == names
    assert [trial.name for trial in study_grid.trials] == [
        f"{name}-{seed}" for seed in (1, 2) for name in names
    ]
    last = study_grid.trials[-1].settings
    assert (last.data.task, last.training.learning_rate, last.training.seed) == ("RTE", 3e-5, 2)
    assert (last.training.num_train_epochs, study_grid.trials[0].settings.training.num_train_epochs) == (
        5,
        10,
    )
    assert (last.plug.options, study_grid.trials[0].settings.plug.options) == ({}, None)


def test_a_task_whose_files_are_missing_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    asked = study(tmp_path)
    (tmp_path / "RTE" / "dev.tsv").unlink()
    with pytest.raises(SettingsError, match=r"trial plain-RTE-2e-5-1: .*RTE: there is no dev.tsv of RTE"):
        grid(asked, "here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"models": {"plain": {"position": "t5"}}},
            "position is not to be set: the task 'glue' trains a checkp",
        ),
        ({"axes": {"seed": {"one": {"training": {"seed": 1}}}}}, "training.seed is not to be set"),
        ({"axes": {"rate": {}}}, "axis 'rate' has no label"),
        ({"axes": {"rate": {"2 e": {}}}}, "label '2 e': a name has letters"),
    ],
)
def test_what_does_not_follow_from_the_study_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        grid(study(tmp_path, **changes), "here")


def finished(folder: Path, task: str, scores: tuple[float, ...], path: str = "bert", **training: Any) -> str:
    """A run directory with what the table reads."""
    seed, rate = training["seed"], training["learning_rate"]
    run = folder / f"{task}-{rate}-{seed}"
    (run / "model").mkdir(parents=True)
    (run / "model/config.json").write_text("{}")
    (run / "config.yaml").write_text(
        f"run: {run}\ntask: glue\ndata: {{task: {task}, folder: glue}}\nmodel: {{path: {path}}}\n"
        f"training: {{seed: {seed}, learning_rate: {rate}}}\n"
    )
    task_ = glue_table.TASKS[task]
    names = [task_.metrics[0], *(f"{task_.metrics[0]}_{split}" for split in task_.valid[1:])]
    (run / "result.json").write_text(json.dumps(dict(zip(names, scores, strict=True))))
    return str(run)


def row(runs: list[str]) -> dict[str, str]:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in glue_table.table(runs).splitlines()]
    return dict(zip((title.partition(" ")[0] for title in lines[2]), lines[4], strict=True))


def test_the_average_is_that_of_the_paper_over_nine_columns(tmp_path: Path) -> None:
    runs = [finished(tmp_path, task, scores, seed=1, learning_rate=2e-5) for task, scores in TABLE2.items()]
    assert row(runs)["average"] == "82.96"
    assert row(runs[1:])["average"] == "-"


def test_the_best_rate_is_that_of_the_highest_median(tmp_path: Path) -> None:
    actual = {2e-5: [50.0, 51.0, 99.0, 49.0, 51.5], 3e-5: [52.0, 52.5, 53.0, 10.0, 10.5]}
    runs = [
        finished(tmp_path, "RTE", (score,), seed=seed, learning_rate=rate)
        for rate, scores in actual.items()
        for seed, score in enumerate(scores)
    ]
    assert row(runs)["RTE"] == "52.0 (10.0-53.0, 5; 3e-05)"


def test_curves_are_of_the_scores_after_each_checkpoint(tmp_path: Path) -> None:
    """Ke et al. 2021, Figures 4b and 4c; a model that is no run's, and a single checkpoint, have no curve."""
    run = tmp_path / "tupe"
    run.mkdir()
    (run / "result.json").write_text('{"steps": 900}')
    runs = []
    for path, gain in (
        (f"{run}/checkpoint-300", 0.0),
        (str(run), 2.0),
        ("bert", 9.0),
        (f"{run}2/checkpoint-3", 1.0),
    ):
        folder = tmp_path / f"from-{len(runs)}"
        for task, scores in TABLE2.items():
            for seed, more in enumerate((-1.0, 0.0, 5.0)):
                gained = tuple(score + gain + more for score in scores)
                runs.append(finished(folder, task, gained, path=path, seed=seed, learning_rate=2e-5))
    actual = glue_curves.curves(glue_table.read_runs(runs))
    assert {what: {n: [s for s, _ in p] for n, p in c.items()} for what, c in actual.items()} == {
        "MNLI-m": {"tupe": [300, 900]},
        "GLUE average": {"tupe": [300, 900]},
    }
    assert [score for _, score in actual["MNLI-m"]["tupe"]] == pytest.approx([84.93, 86.93])
    assert [score for _, score in actual["GLUE average"]["tupe"]] == pytest.approx([82.96, 84.96], abs=5e-3)
    names = [name for name, _ in glue_curves.draw(glue_table.read_runs(runs))]
    assert names == ["steps-MNLI-m", "steps-GLUE-average"]


def test_a_run_without_its_model_is_not_finished(tmp_path: Path) -> None:
    """As one that was killed while it was trained for longer, whose result is of the shorter training."""
    run = finished(tmp_path, "RTE", (50.0,), seed=1, learning_rate=2e-5)
    shutil.rmtree(Path(run) / "model")
    with pytest.raises(DataError, match=r"is not finished \(no model/config.json\)"):
        glue_table.table([run])


def test_a_study_whose_runs_have_no_common_table_has_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its variants differ in the number of epochs, which no row of the table names."""
    run_inline(monkeypatch, report=False)
    longer = {"settings": {"training": {"num_train_epochs": 20}}}
    asked = study(tmp_path, models={"plain": {}, "longer": longer}, seeds=[1])
    for trial in grid(asked, "here").trials:
        (trial.run / "model").mkdir(parents=True)
        (trial.run / "model" / "config.json").write_text("{}")
        (trial.run / "config.yaml").write_text(dump(trial.settings))
        score = "matthews" if "CoLA" in trial.name else "accuracy"
        (trial.run / "result.json").write_text(json.dumps({score: 50.0, f"best_valid_{score}": 50.0}))
        (trial.run / "cost.json").write_text("{}")
    table = tmp_path / "study" / "glue.md"
    table.write_text("of an earlier study")
    results = run.study(asked)
    assert {outcome.status for outcome in results.outcomes} == {"finished"}
    assert not table.exists()
    assert re.search("no .*glue.md: .* cannot be compared: training.num_train_epochs", caplog.text)


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    run = finished(tmp_path, "RTE", (50.0,), seed=1, learning_rate=2e-5)
    with pytest.raises(DataError, match="are the same run"):
        glue_table.table([run, run])
