"""A path is the same one for every command and every part of a run, however it is written."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from floater.lab.cli import main
from floater.lab.cli.parser import parse
from floater.lab.paths import expand_home
from floater.lab.settings import SettingsError, load, make
from floater.lab.study.settings import StudySettings
from floater.lab.tasks import task
from floater.lab.tasks.generated import GeneratedSettings

RUN: dict[str, Any] = {
    "task": "generated",
    "data": {"problem": "copy", "train": 50, "valid": 8, "lengths": [1, 3]},
    "model": {"preset": "tiny", "position": "sinusoidal", "max_length": 35},
    "training": {"max_steps": 2, "save_steps": 2, "eval_steps": 2, "warmup_steps": 1, "average_last": 0},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory beside the working directory."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def written(run: str) -> str:
    Path("run.yaml").write_text(yaml.safe_dump(RUN | {"run": run}), encoding="utf-8")
    return "run.yaml"


@pytest.mark.parametrize(
    ("run", "folder"),
    [
        ("~/r", "home/r"),
        ("~/r/", "home/r"),
        ("./~/r", "work/~/r"),
        ("$HOME/r", "work/$HOME/r"),
        ("linked/r", "home/r"),
        ("x/../r//", "work/r"),
    ],
)
def test_a_run_is_in_one_directory(
    run: str, folder: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("linked").symlink_to(home)
    Path("x").mkdir()
    config = written(run)
    assert main(["train", config]) == 0
    actual = home.parent / folder
    assert {"checkpoint-2", "config.yaml", "data.json", "log.json", "model", "vocabulary"} <= {
        path.name for path in actual.iterdir()
    }
    assert not [path for path in home.parent.rglob("config.yaml") if path.parent != actual.resolve()]
    stamp = (actual / "model" / "model.safetensors").stat().st_mtime_ns
    assert main(["train", config, f"run={run}"]) == 0
    assert (actual / "model" / "model.safetensors").stat().st_mtime_ns == stamp
    assert main(["evaluate", run, "--bins", "2"]) == 0
    assert "is finished" in capsys.readouterr().err


def test_what_a_command_writes_is_where_its_other_paths_are(home: Path) -> None:
    assert main(["train", written("~/r")]) == 0
    assert main(["plot", "~/r", "vectors", "--numbers=~/numbers.npz"]) == 0
    assert (home / "r" / "plots" / "vectors.svg").is_file() or (
        home / "r" / "plots" / "vectors.png"
    ).is_file()
    assert (home / "numbers.npz").is_file()
    assert [path.name for path in Path.cwd().iterdir()] == ["run.yaml"]


def test_every_path_of_settings_and_arguments_is_expanded(home: Path) -> None:
    names = [f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target")]
    data = {name: f"~/{name}" for name in names} | {"train_source": ["~/a", "b"], "vocabulary": "~/v"}
    settings = make(
        task("translation").Settings,
        {
            "run": "~/r",
            "data": data,
            "training": {"warm_start": "~/w"},
        },
        "here",
        ["data.train_target=[~/c, d]"],
    )
    data = settings.data
    assert settings.run == f"{home}/r"
    assert data.train_source == [f"{home}/a", "b"]
    assert data.train_target == [f"{home}/c", "d"]
    assert (data.valid_source, data.vocabulary) == (f"{home}/valid_source", f"{home}/v")
    assert settings.training.warm_start == f"{home}/w"
    study = make(
        StudySettings,
        {
            "folder": "~/s",
            "checkpoints": {"bert": "~/bert"},
            "tests": {"far": {"source": "~/t", "token": r"~\w+"}},
            "note": "~/it is prose",
            "short_to_long": {"source": ["~/x"], "target": ["~/y"], "skip": {"~/x": 1}},
        },
        "here",
    )
    assert (study.folder, study.checkpoints) == (f"{home}/s", {"bert": f"{home}/bert"})
    assert study.tests == {"far": {"source": f"{home}/t", "token": r"~\w+"}}
    assert study.note == "~/it is prose"
    assert study.short_to_long.skip == {study.short_to_long.source[0]: 1} == {f"{home}/x": 1}
    actual = parse(["translate", "~/r", "--source=~/s", "--output", "~/o"])
    assert (actual.run, actual.source, actual.output) == (f"{home}/r", f"{home}/s", f"{home}/o")
    assert parse(["glue", "~/a", "b"]).runs == [f"{home}/a", "b"]


def test_a_user_without_a_home_is_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        SettingsError, match=r"run\.yaml: run is '~no\.one/r', but '~no\.one' has no home dir"
    ):
        load(GeneratedSettings, written("~no.one/r"))
    with pytest.raises(SettingsError, match=r"source is '~no\.one/a', but"):
        make(task("image_classification").Settings, {"run": "r", "data": {"source": "~no.one/a"}}, "here")
    with pytest.raises(SystemExit):
        main(["evaluate", "~no.one/r"])
    assert capsys.readouterr().err.startswith(
        "floater: run is '~no.one/r', but '~no.one' has no home directory"
    )


TEXTS = st.text() | st.none() | st.integers()


@given(st.recursive(TEXTS, lambda part: st.lists(part) | st.dictionaries(st.text(), part)))
def test_what_has_no_tilde_is_left_alone(value: Any) -> None:
    if "~" not in repr(value):
        assert expand_home(value) is value
