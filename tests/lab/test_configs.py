"""The configurations that come with the library."""

import shlex
from pathlib import Path

import pytest
import yaml

from floater.lab.settings import dump, load, read
from floater.lab.study.settings import StudySettings
from floater.lab.tasks.registry import from_config

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*/*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_configuration_begins_with_its_command_and_loads(path: Path, tmp_path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    hash_, program, command, named, *overrides = shlex.split(first)
    assert (hash_, program, named) == ("#", "floater", str(path.relative_to(ROOT)))
    if command != "train":
        return
    _, settings = from_config(read(path), str(path), overrides)
    (tmp_path / "config.yaml").write_text(dump(settings), encoding="utf-8")
    assert load(type(settings), tmp_path / "config.yaml") == settings


def test_a_single_run_of_table_3_is_that_of_the_study() -> None:
    study = load(StudySettings, ROOT / "configs" / "study" / "floater_table3_base.yaml")
    path = ROOT / "configs" / "glue" / "roberta_mrpc.yaml"
    axis = study.axes["task"]["MRPC"]
    training = {"training": study.settings["training"] | axis["training"]}
    from_study = study.settings | axis | {"data": study.settings["data"] | axis["data"]} | training
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {name: tree[name] for name in ("data", "model", "training")} == from_study


def test_plugged_and_plain_runs_of_glue_differ_in_the_plug_alone() -> None:
    for path in (ROOT / "configs" / "glue").glob("*.yaml"):
        lines = path.read_text(encoding="utf-8").splitlines()
        said = [line for line in lines if line.startswith("# With FLOATER: ")]
        for line in said:
            _, _, overrides = line.partition(f"floater train {path.relative_to(ROOT)} ")
            names = {override.partition("=")[0] for override in shlex.split(overrides)}
            assert names <= {"run", "plug.options", "plug.flow", "plug.train"}
            from_config(read(path), str(path), shlex.split(overrides))
        assert said or path.stem == "tupe"
