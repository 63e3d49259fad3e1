"""The examples run as they say: a task and a position encoding from outside the package."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from floater.encodings import build, catalogue, plugins
from floater.encodings import registry as encodings
from floater.encodings.relative.floater_relative import FloaterRelative
from floater.lab.cli import main
from floater.lab.settings import SettingsError
from floater.lab.tasks import registry
from floater.positions import Positions
from floater.testing import CHECKS, check_contract

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = ["data.train=200", "training.max_steps=30", "training.save_steps=30", "training.eval_steps=30"]
SPEC = {"dim": 8, "heads": 2, "layers": 3, "max_length": 16}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, as the working directory."""
    copy = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    monkeypatch.chdir(copy)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "_TASKS", dict(registry._TASKS))
    monkeypatch.setattr(encodings, "_CATALOGUE", dict(encodings._CATALOGUE))
    for name in ("language_identification", "squared_distance", "log_distance", "clipped_distance"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return copy


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("squared_distance", "squared_distance"),
        ("log_distance", "distance_mlp"),
        ("log_distance", "floater_symmetric"),
        ("clipped_distance", "dynamic_bias_clipped"),
        ("clipped_distance", "kerple_clipped"),
        ("clipped_distance", "alibi_clipped"),
    ],
)
def test_an_encoding_keeps_the_contract(
    folder: Path, module: str, name: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    import_module(module)
    check_contract(name, check)


def test_rivals_of_the_flow_have_its_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    import_module("log_distance")
    size = {
        name: sum(p.numel() for p in build(name, **SPEC).parameters())
        for name in ("floater_relative", "distance_mlp", "floater_symmetric")
    }
    assert size["distance_mlp"] == size["floater_relative"]
    starts = SPEC["layers"] * 32 * (1 + SPEC["heads"])
    assert size["floater_symmetric"] == size["floater_relative"] - starts


def test_the_rival_without_the_equation_evaluates_the_field_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the field does not depend on u, its value is the slope of the flow's psi at every u."""
    monkeypatch.syspath_prepend(folder)
    import_module("log_distance")
    flow, rival = (build(name, causal=True, **SPEC).double() for name in ("floater_relative", "distance_mlp"))
    rival.load_state_dict(flow.state_dict())
    with torch.no_grad():
        for model in (flow, rival):
            model.flow.field.inner.weight.zero_()
            model.flow.field.outer.weight[:, -1:].zero_()
            model.flow.field.outer.bias.normal_(generator=torch.Generator().manual_seed(1))
    bias, value = (model.correlation(model.prepare(Positions.arange(16)), 0)[0] for model in (flow, rival))
    u = torch.log1p(torch.arange(16.0, dtype=torch.float64).clamp(max=8))
    start = bias[:, -1, -1][:, None]
    torch.testing.assert_close(bias[:, -1].flip(-1), start + u * value[:, -1].flip(-1), atol=1e-5, rtol=1e-5)


def test_the_rival_of_real_distances_is_its_value_at_each_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    import_module("log_distance")
    rival = build("distance_mlp", **SPEC)
    times = torch.tensor([[0.0, 0.3, 2.9, 7.7, 15.2], [0.0, 0.1, 0.2, 4.1, 9.8]]).double()
    positions = Positions.times(times)
    at_each = FloaterRelative.prepare(rival, positions)
    for layer in range(SPEC["layers"]):
        interpolated = rival.correlation(rival.prepare(positions), layer)
        torch.testing.assert_close(interpolated, rival.correlation(at_each, layer), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["dynamic_bias", "kerple", "alibi"])
def test_a_clipped_rival_counts_far_distances_as_half_the_training_length(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    import_module("clipped_distance")
    rival, plain = build(f"{name}_clipped", **SPEC), build(name, **SPEC)
    plain.load_state_dict(rival.state_dict())
    far, half = 40, SPEC["max_length"] // 2
    positions = Positions.arange(far)
    wanted, bias = (model.correlation(model.prepare(positions), 1)[0] for model in (plain, rival))
    delta = positions.delta[0].clamp(-half, half)
    torch.testing.assert_close(bias, wanted[:, delta.clamp(max=0).neg(), delta.clamp(min=0)])
    assert not torch.allclose(bias, wanted)


def floater(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, in which nothing was imported before."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "floater", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)


def test_a_task_and_an_encoding_of_ones_own_train_and_are_scored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imports = "imports=[language_identification,squared_distance]"
    done = floater("train", "languages.yaml", imports, "model.position=squared_distance", *QUICK)
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "runs" / "languages" / "result.json").read_text())
    assert result["accuracy"] > 80  # of 30 steps
    (folder / "test.tsv").write_text("en\tMarch 5, 2026; 3 days ago\nde\t5. März 2026; vor 3 Tagen\n")
    score = ["evaluate", "runs/languages", "--trust-code", "--source", "test.tsv"]
    assert main([*score, "--output", "predictions.txt"]) == 0
    assert capsys.readouterr().out.startswith("accuracy ")
    assert set((folder / "predictions.txt").read_text().split()) <= {"en", "de"}
    assert main([*score, "--window", "3"]) == 2
    assert "takes no --window; it takes --source, --shortest" in capsys.readouterr().err
    with open("test.tsv", "a") as file:
        file.write("de\tThis sentence is longer, and not in German\n")
    accuracy = []
    for shortest in ("0", "30"):
        assert main([*score, "--shortest", shortest, "--json"]) == 0
        accuracy.append(json.loads(capsys.readouterr().out)["scores"]["accuracy"])
    assert accuracy == [66.67, 0.0]


def test_an_example_is_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 100, path.name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("imports=[no_such_module]", "imports: No module named 'no_such_module'"),
        ("imports=language", "imports is 'language'; it must be a list of names of modules"),
        ("imports=[]", "unknown task 'language_identification'"),
    ],
)
def test_an_import_that_fails_is_one_line(
    folder: Path, override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "languages.yaml", override]) == 2
    assert message in capsys.readouterr().err


def test_an_installed_package_offers_tasks_and_encodings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By entry points, without a word in the configuration."""
    monkeypatch.syspath_prepend(folder)
    points = {
        "floater.lab.tasks": EntryPoint(
            "language_identification", "language_identification", "floater.lab.tasks"
        ),
        "floater.encodings": EntryPoint("squared_distance", "squared_distance", "floater.encodings"),
    }

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        return [point for point in [points[group]] if name in (None, point.name)]

    for module in ("floater.lab.tasks.registry", "floater.encodings.plugins"):
        monkeypatch.setattr(f"{module}.entry_points", entry_points)
    assert "language_identification" in registry.names()
    assert registry.task("language_identification").name == "language_identification"
    with pytest.raises(SettingsError, match="did you mean 'language_identification'"):
        registry.task("language_identifier")
    plugins.load()
    assert "squared_distance" in catalogue()
