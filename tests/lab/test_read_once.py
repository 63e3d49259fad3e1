"""The configuration of a command is parsed once, from the command line to the work."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from floater.lab.cli import main
from floater.lab.study.trial import run_trial
from floater.lab.study.variants import PLAN, TRIALS
from lab.tasks.generated.small import write_config


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each YAML file is parsed, by its text."""
    load, actual = yaml.load, Counter[str]()

    def counted(stream: Any, Loader: Any) -> Any:
        if isinstance(stream, bytes):  # an override is a str
            actual[stream.decode()] += 1
        return load(stream, Loader)

    monkeypatch.setattr(yaml, "load", counted)
    return actual


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration whose run is finished."""
    config = write_config(tmp_path_factory.mktemp("once"), data={"longest": 6})
    assert main(["train", str(config)]) == 0
    return config


def test_train(tmp_path: Path, parsed: Counter[str]) -> None:
    config = write_config(tmp_path, training={"max_steps": 1})
    assert main(["train", str(config), "training.save_steps=1", "task=generated", "imports=[]"]) == 0
    assert parsed == {config.read_text(): 1}


def test_evaluate(finished: Path, parsed: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    run = finished.with_suffix("")
    assert main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == str(run)
    assert parsed == {(run / "config.yaml").read_text(): 1}


def test_a_trial_of_a_study(finished: Path, tmp_path: Path, parsed: Counter[str]) -> None:
    """With a run that is trained: two test sets read its settings no more."""
    trials = tmp_path / TRIALS
    trials.mkdir()
    run = trials / "one"
    tree = yaml.safe_load(finished.read_text()) | {"run": str(run)}
    (trials / "one.yaml").write_text(yaml.safe_dump(tree))
    tests = {"all": {}, "longer": {"bins": [6]}}
    (tmp_path / PLAN).write_text(
        json.dumps({"threads": 1, "tests": tests, "keep_checkpoints": True, "keep_models": True})
    )
    run_trial(tmp_path, "one")
    assert sorted(path.name for path in (run / "measured").glob("*.json")) == ["all.json", "longer.json"]
    assert parsed == {(trials / "one.yaml").read_text(): 1}
