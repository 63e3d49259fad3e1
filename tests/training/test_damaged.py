"""A run whose checkpoints are damaged or malicious resumes from a whole one, or refuses in a line."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from floater.errors import DataError
from floater.flow.collocation.plan import Plan
from floater.training.checkpoints import publish, staging
from floater.training.resuming import solver_states
from helpers import equal_runs, kill

from .small_run import TASK, names, settings

PARTS = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TASK.train(settings(tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after step 9, with the checkpoints of steps 4 and 8; to be copied."""
    return kill(TASK, settings(tmp_path_factory.mktemp("began") / "run"), 9)


@pytest.fixture
def run(began: Path, tmp_path: Path) -> Path:
    return shutil.copytree(began, tmp_path / "run")


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_checkpoint_is_passed_over(
    run: Path, whole: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = run / "checkpoint-8" / part
    if PARTS.index(part) % 2:
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size - 7)
    TASK.train(settings(run))
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"{run}/checkpoint-8 is damaged and not used: {part}")
    assert equal_runs(run, whole)
    assert names(run) == ["checkpoint-12", "checkpoint-8", "damaged-checkpoint-8"]


def test_without_a_whole_checkpoint_it_says_so_each_time(run: Path) -> None:
    for step in (4, 8):
        (run / f"checkpoint-{step}" / "optimizer.pt").unlink()
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"no checkpoint of \S+ is whole: .*optimizer.pt is missing; remove \S+/d"
        ):
            TASK.train(settings(run))


def test_a_final_model_is_no_mean_with_a_damaged_checkpoint(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "model")
    os.truncate(run / "checkpoint-8" / "model.safetensors", 99)
    TASK.train(settings(run))
    assert "the final model is a mean without damaged-checkpoint-8" in caplog.text
    assert json.loads((run / "result.json").read_text())["averaged"] == ["checkpoint-12"]


def test_the_second_best_takes_the_place_of_a_best_checkpoint_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scores = iter([7.0, 5.0, 5.0, 0.0, 0.0])  # of steps 4, 8 and 12, and of the final models
    monkeypatch.setattr(TASK, "validate", lambda _: SimpleNamespace(scores={"exact": next(scores)}))
    asked = settings(tmp_path / "run", average_last=0, eval_steps=4, save_total_limit=3)
    run = TASK.train(asked)
    assert json.loads((run / "result.json").read_text())["averaged"] == ["checkpoint-4"]
    shutil.rmtree(run / "model")
    os.truncate(run / "checkpoint-4" / "model.safetensors", 99)
    TASK.train(asked)
    assert "checkpoint-4, the best one, is gone: the final model is checkpoint-12" in caplog.text
    assert json.loads((run / "result.json").read_text())["averaged"] == ["checkpoint-12"]


def republished(run: Path, change: Callable[[Path], object]) -> None:
    """Change the last checkpoint as one who also writes its manifest."""
    checkpoint = run / "checkpoint-8"
    staging(checkpoint).parent.mkdir(exist_ok=True)
    os.replace(checkpoint, staging(checkpoint))
    change(staging(checkpoint))
    publish(staging(checkpoint), checkpoint)


def saved(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        content = torch.load(folder / name, weights_only=True)
        change(content)
        torch.save(content, folder / name)

    return act


def first(state: dict[str, Any], **values: Any) -> None:
    state["state"][0].update(values)


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return act


def log_of(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        state = json.loads((folder / "trainer_state.json").read_text())
        change(state)
        (folder / "trainer_state.json").write_text(json.dumps(state))

    return act


class Evil:
    """Would run a command if it were unpickled as pickle does."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


CRAFTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another shape": (
        saved("optimizer.pt", lambda s: first(s, exp_avg=torch.zeros(2, 3))),
        r"exp_avg of parameter 0 is \(2, 3\) float32, where its weight is",
    ),
    "another type": (
        saved("optimizer.pt", lambda s: first(s, exp_avg_sq=s["state"][0]["exp_avg_sq"].half())),
        "exp_avg_sq of parameter 0 is .* float16",
    ),
    "integers": (
        saved("optimizer.pt", lambda s: first(s, step=torch.tensor(3))),
        r"step of parameter 0 is \(\) int64",
    ),
    "a vector of steps": (
        saved("optimizer.pt", lambda s: first(s, step=torch.zeros(9))),
        r"is \(9,\) float32",
    ),
    "one number for all": (
        saved("optimizer.pt", lambda s: first(s, exp_avg=torch.zeros(1).expand_as(s["state"][0]["exp_avg"]))),
        "exp_avg of parameter 0 has less memory than",
    ),
    "a text": (saved("optimizer.pt", lambda s: first(s, exp_avg="text")), "exp_avg of parameter 0 is a str"),
    "another name": (
        saved("optimizer.pt", lambda s: first(s, other=torch.zeros(1))),
        r"other of parameter 0 is \(1,\)",
    ),
    "another parameter": (
        saved("optimizer.pt", lambda s: s["state"].update({99: s["state"][0]})),
        "its parameters are not those of its groups",
    ),
    "fewer parameters": (
        saved("optimizer.pt", lambda s: s["param_groups"][0]["params"].pop()),
        "its groups have other numbers of parameters",
    ),
    "a parameter twice": (
        saved("optimizer.pt", lambda s: s["param_groups"][0]["params"].__setitem__(1, 0)),
        "its parameters are not those of its groups",
    ),
    "a rate that is text": (
        saved("optimizer.pt", lambda s: s["param_groups"][0].update(lr="fast")),
        "lr of a group is 'fast', not as",
    ),
    "no optimizer": (saved("optimizer.pt", lambda s: s.clear()), "it holds no state of an optimizer"),
    "code in the optimizer": (lambda f: torch.save(Evil(), f / "optimizer.pt"), "cannot be loaded"),
    "code in the random numbers": (lambda f: torch.save(Evil(), f / "rng_state.pth"), "cannot be loaded"),
    "random numbers of another kind": (
        lambda f: torch.save({"python": 3, "numpy": 3, "cpu": 3}, f / "rng_state.pth"),
        "cannot be loaded",
    ),
    "another schedule": (
        saved("scheduler.pt", lambda s: s.pop("base_lrs")),
        "it holds no state of this schedule",
    ),
    "a rate too many": (
        saved("scheduler.pt", lambda s: s["base_lrs"].append(1.0)),
        "base_lrs is .*, not as",
    ),
    "weights of another shape": (
        weights(lambda w: w.update({next(iter(w)): torch.zeros(3)})),
        r"does not fit: \S+ is \(3,\) there and",
    ),
    "weights of another type": (
        weights(lambda w: w.update({next(iter(w)): w[next(iter(w))].half()})),
        r"does not fit the training: \S+ is F16, not torch.float32",
    ),
    "a weight less": (weights(lambda w: w.pop(next(iter(w)))), "does not fit: .* is absent there and"),
    "another step": (log_of(lambda s: s.update(global_step=7)), "its state is that of step 7"),
    "a step that is text": (log_of(lambda s: s.update(global_step="8")), "its state is that of step '8'"),
    "a log of numbers": (log_of(lambda s: s.update(log_history=[1])), "its log has entries without"),
    "a log without minutes": (
        log_of(lambda s: s["log_history"][0].pop("minutes")),
        "its log has entries without",
    ),
    "a field more": (log_of(lambda s: s.update(evil=1)), "cannot be loaded"),
    "a state that is a list": (lambda f: (f / "trainer_state.json").write_text("[]"), "cannot be loaded"),
    "solvers of other flows": (
        saved("step_state_0.pth", lambda s: s["solvers"].append({})),
        "it does not hold the states of 0 solvers",
    ),
    "code beside the random numbers": (
        lambda f: torch.save(Evil(), f / "step_state_0.pth"),
        "cannot be loaded",
    ),
    "flops that are text": (log_of(lambda s: s.update(total_flos="x")), "its total_flos is 'x'"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_state_is_refused_before_a_step(
    run: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, reason = CRAFTED[name]
    monkeypatch.chdir(run.parent)
    republished(run, change)
    with pytest.raises(DataError, match=reason) as error:
        TASK.train(settings(run))
    assert len(str(error.value).splitlines()) == 1
    assert re.search(r"checkpoint-8", str(error.value))
    assert not (run.parent / "executed").exists()


def test_the_schedule_is_that_of_the_settings_whatever_a_state_says(run: Path, whole: Path) -> None:
    republished(
        run, log_of(lambda s: s.update(save_steps=10**9, eval_steps="x", logging_steps=None, max_steps=9))
    )
    assert equal_runs(TASK.train(settings(run)), whole)


def test_a_damaged_vocabulary_is_refused(run: Path, whole: Path) -> None:
    file = run / "vocabulary" / "tokenizer.json"
    file.write_text(file.read_text().replace('"=":', '"~":'))
    with pytest.raises(DataError, match=r"vocabulary is damaged: tokenizer.json has changed .*; remove it"):
        TASK.train(settings(run))
    shutil.rmtree(file.parent)
    assert equal_runs(TASK.train(settings(run)), whole)


@pytest.mark.parametrize(
    "plan",
    [
        [],
        {"edges": [0.0, 1.0]},
        asdict(Plan([0.0, 1.0])) | {"edges": [0, "x"]},
        asdict(Plan([0.0, 1.0])) | {"backward": {1: [0.5]}},
        asdict(Plan([0.0, 1.0])) | {"wide": "yes"},
    ],
)
def test_a_crafted_state_of_a_solver_is_refused(plan: Any) -> None:
    with pytest.raises(
        DataError, match="does not fit the training: a solver's state has other names or types"
    ):
        solver_states(Path("file"), [{"problem": "", "plan": plan, "step": None}], 1)
