"""Every full-size study, shrunk: from files as `floater data` leaves them to the table's own layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from floater.lab.settings import read as read_yaml
from floater.lab.study import tables
from floater.lab.study.grid import grid, merged
from floater.lab.study.run import study
from floater.lab.study.settings import StudySettings
from floater.lab.study.variants import Trial
from floater.lab.tasks import registry
from floater.lab.training.run import MODEL
from processes import in_two_processes

from .small import SIZES, SMALL_MODEL, run_inline
from .test_twins import read, small, twin_folder

__all__ = ["twin_folder"]
MODELS = {
    "floater_table2_en_de_base": ("sinusoidal", "floater"),
    "floater_table3_base": ("floater",),
    "floater_table4": ("roberta", "floater"),
    "floater_table5_v2": ("roberta", "floater"),
    "floater_table6": ("floater-add", "rnn1-scalar"),
    "floater_figure2": ("sinusoidal", "floater"),
    "tupe_table2": ("bert_a", "tupe_a"),
    "tupe_glue": ("tupe_a", "tupe_a-mid"),
}
"""The models of each study that are walked with; the others have the same columns."""
STEPS = {"max_steps": 2, "logging_steps": 1, "batches_per_step": 2, "warmup_steps": 1, "bf16": False}
TRANSLATED = {"average_last": 2, "save_total_limit": 2, "max_tokens": 400}
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
PRETRAINED = "runs/study/tupe_table2/trials"


def shrunk(name: str, folder: Path) -> StudySettings:
    """The study with models of width 16 and two steps a trial; its tests stay, and its axes but for rates."""
    settings = small(read(name), name, folder)
    common, models = settings.settings, {key: settings.models[key] for key in MODELS[name]}
    training = STEPS | BY_STEPS
    if settings.task == "translation":
        common = merged(common, {"decoding": {"beam": 1, "max_ratio": 0.01}})
        common["data"] |= {} if "vocabulary" in common["data"] else {"vocabulary_size": 300}
        training |= TRANSLATED
    if settings.task in ("translation", "language_modeling"):
        common["model"] = {**SMALL_MODEL, "changes": dict(SIZES)}
    if settings.task == "language_modeling":
        common = merged(common, {"data": {"block": 16, "vocabulary_size": 290}})
        training |= {"keep_steps": [1], "max_tokens": 64, "save_total_limit": 1}
    if settings.task in ("glue", "race", "squad"):
        training |= {"per_device_train_batch_size": 1, "save_total_limit": 1}
    if name == "tupe_glue":
        paths = {"tupe_a": f"{PRETRAINED}/tupe_a-1", "tupe_a-mid": f"{PRETRAINED}/tupe_a-1/checkpoint-1"}
        models = {key: {"settings": {"model": {"path": path}}} for key, path in paths.items()}
    common = merged(common, {"training": training})
    for key, entry in models.items():
        changes = dict((entry or {}).get("settings") or {})
        if "training" in changes:
            kept = {k: v for k, v in changes["training"].items() if k in ("learning_rate", "keep_best")}
            models[key] = {**(entry or {}), "settings": {**changes, "training": kept}}
    axes = dict(settings.axes)
    if "task" in axes:
        axes["task"] = {task: {"data": change["data"]} for task, change in axes["task"].items()}
    if name == "tupe_glue":
        axes["task"] = {task: axes["task"][task] for task in ("CoLA", "STS-B")}
    changes = {"folder": f"runs/study/{name}", "settings": common, "models": models, "axes": axes}
    budget = replace(settings.budget, threads=1)  # more threads than cores wait for each other
    return replace(settings, **changes, budget=budget, baseline=None, samples=100)


def train_firsts(configs: list[str]) -> int:
    for config in configs:
        task, settings = registry.from_config(read_yaml(Path(config)), config, trusted=True)
        task.train(settings, encoded=Path(config).parents[1] / "encoded")
    return 0


@pytest.mark.slow
def test_a_walk_ends_in_the_tables_of_the_papers(
    twin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first trial of each study is trained by two processes, and the study goes on from there."""
    run_inline(monkeypatch, report=False)
    settings = {name: shrunk(name, twin_folder) for name in MODELS}
    firsts: dict[str, Trial] = {}
    for name, asked in settings.items():
        if name != "tupe_glue":  # whose models are those of the study before
            planned = grid(asked, name)
            planned.write(1)
            firsts[name] = planned.trials[0]
    in_two_processes(train_firsts, [str(trial.config) for trial in firsts.values()], folder=tmp_path)
    assert all((trial.run / MODEL).is_dir() for trial in firsts.values())
    done = {name: study(asked, name) for name, asked in settings.items()}
    for results in done.values():
        assert {(o.trial.name, o.error) for o in results.outcomes if o.status != "finished"} == set()
    shown = {name: tables.scores(results) for name, results in done.items()}
    others = {name: [*tables.others(results)] for name, results in done.items()}

    encodings = [
        f"{model}-{blocks}" for model in MODELS["floater_table2_en_de_base"] for blocks in ("input", "all")
    ]
    assert [row[0].text for row in shown["floater_table2_en_de_base"].rows] == encodings
    assert "tokenised BLEU" in others["floater_table2_en_de_base"]
    schools = [f"accuracy (%) {part}" for part in ("test", "middle", "high")]
    assert shown["floater_table4"].head[1:4] == schools
    assert shown["floater_table5_v2"].head[1] == "F1 (%) dev"
    assert others["floater_table5_v2"] == ["exact match (%)"]
    counted = {row[0].text: row[2].values for row in shown["floater_table6"].rows}
    assert counted["floater-add"]["of a stack"] == 2 * 16 * 16 + 4 * 16  # 526,336 of width 512
    bins = [f"BLEU {bin}" for bin in ("80–99", "100–119", "120–139", "≥ 140")]
    assert shown["floater_figure2"].head[2:6] == bins
    (glue,) = glue_rows("floater_table3_base")
    assert glue[0] == "FLOATER"
    assert len(glue) == 10
    assert "-" not in glue
    assert [[cell != "-" for cell in row[1:6]] for row in glue_rows("tupe_glue")] == [
        [True, *[False] * 3, True]
    ] * 2


def glue_rows(name: str) -> list[list[str]]:
    """Return the rows of a study's table of GLUE that have scores."""
    table = Path(f"runs/study/{name}/glue.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return [row for row in rows if row[0] in ("baseline", "FLOATER")]
