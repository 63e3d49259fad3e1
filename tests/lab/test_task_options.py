"""Options of `floater evaluate` that only a task outside the package has."""

import json
import sys
from pathlib import Path

import pytest

from floater.lab.cli import main
from floater.lab.tasks import registry

MODULE = '''
"""A task whose score is what it was called with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from floater.lab.tasks import RunSettings, Task, register
from floater.lab.tasks.measurement import Measurement


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    task: Literal["outside"] = "outside"
    data: dict[str, Any]
    model: dict[str, Any]


@register("outside")
class Outside(Task):
    Settings = Settings
    metric, output = "score", "lines"

    def make_processor(self, settings, train): ...
    def encode(self, settings, processor, examples, *, training=False): ...
    def build(self, settings, processor, train): ...
    def collate(self, settings, processor, model): ...
    def score(self, settings, model, processor, examples): ...

    def evaluate(
        self,
        run: Path,
        source: str | None = None,
        *,
        level: int = 1,
        shift: float | None = None,
        edges: tuple[int, ...] = (),
        name: str = "",
        folder: Path | None = None,
        case_sensitive: bool = False,
        window: int = 0,
        settings: Settings | None = None,
    ) -> Measurement:
        arguments = {key: str(value) for key, value in locals().items() if key not in ("self", "run")}
        return Measurement(np.array([1]), {}, scores=arguments)
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of the task; nothing was trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.delitem(sys.modules, "outside_task", raising=False)
    Path("outside_task.py").write_text(MODULE)
    Path("run").mkdir()
    Path("run/config.yaml").write_text(
        "{run: run, task: outside, imports: [outside_task], data: {}, model: {}}"
    )
    return "run"


def scores(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    """Return what the task was called with, without its defaults."""
    assert main(["evaluate", *arguments, "--trust-code", "--json"]) == 0
    defaults = {"None", "1", "()", "", "False", "0"}
    values = json.loads(capsys.readouterr().out)["scores"]
    return {name: value for name, value in values.items() if value not in defaults}


def test_an_option_has_the_type_of_its_parameter(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert scores(capsys, run) == {}
    assert scores(capsys, run, "--level", "1_000", "--shift=-3", "--edges", "[2, 4]") == {
        "level": "1000",
        "shift": "-3.0",
        "edges": "(2, 4)",
    }
    assert scores(capsys, run, "--name", "no", "--window", "5", "--case-sensitive", "--source", "x") == {
        "name": "no",
        "window": "5",
        "case_sensitive": "True",
        "source": "x",
    }
    assert scores(capsys, run, "--name=1 # 2", "--no-case-sensitive", "--folder", "~/a") == {
        "name": "1 # 2",
        "folder": "/home/me/a",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--level", "high"], "'--level' must be int, not 'high'"),
        (["--level", "1.5"], "'--level' must be int, not '1.5'"),
        (["--edges", "[1, b]"], "'--edges' must be tuple[int, ...], not '[1, b]'"),
        (
            ["--levle", "3"],
            "run is a run of task 'outside', which takes no --levle; it takes --source, --level, --shift, "
            "--edges, --name, --folder, --case-sensitive, --window",
        ),
        (
            ["--settings", "{}"],
            "run is a run of task 'outside', which takes no --settings; it takes --source",
        ),
        (["--stride", "2"], "run is a run of task 'outside', which takes no --stride; it takes"),
    ],
)
def test_a_wrong_option_is_one_line(
    run: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", run, "--trust-code", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"floater: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--level"], "argument --level: expected one argument; see floater help evaluate"),
        (["stray"], "floater evaluate takes no 'stray'; see floater help evaluate"),
    ],
)
def test_a_word_without_an_option_is_refused(
    run: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", run, "--trust-code", *words])
    assert (stop.value.code, capsys.readouterr().err) == (2, f"floater: {message}\n")


def test_options_of_a_task_need_consent_to_its_code(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", run, "--level", "3"]) == 2
    assert "add --trust-code" in capsys.readouterr().err
