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
from transformers import TrainerCallback

from floater.errors import DataError
from floater.flow.collocation.plan import Plan
from floater.lab.cli import main
from floater.lab.settings import make
from floater.lab.tasks import task
from floater.lab.tasks.finetuning.checkpoint import locate
from floater.lab.tasks.language_modeling import LanguageModelingSettings
from floater.lab.training.checkpoints import publish, staging
from floater.lab.training.files import damage
from floater.lab.training.resuming import check_complete, random_states, solver_states
from helpers import equal_runs, kill, train_with

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


def test_without_a_whole_checkpoint_it_says_so_each_time_and_changes_nothing(run: Path) -> None:
    (run / "checkpoint-4").rename(run / "damaged-checkpoint-4")
    (run / "checkpoint-8" / "optimizer.pt").unlink()
    refusal = (
        r"no checkpoint of \S+ is whole: \S+/checkpoint-8: optimizer.pt is missing; remove "
        "damaged-checkpoint-4, checkpoint-8 there to train from the start"
    )
    before = sorted(run.rglob("*"))
    for _ in range(2):
        with pytest.raises(DataError, match=refusal):
            TASK.train(settings(run))
        assert sorted(run.rglob("*")) == before
    shutil.rmtree(run / "checkpoint-8")
    with pytest.raises(DataError, match=r"no checkpoint of .*; remove damaged-checkpoint-4 there to"):
        TASK.train(settings(run))


def test_a_final_model_is_no_mean_with_a_damaged_checkpoint(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "model")
    os.truncate(run / "checkpoint-8" / "model.safetensors", 99)
    TASK.train(settings(run))
    assert "the final model is a mean without checkpoint-8, which is damaged or gone" in caplog.text
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


@pytest.mark.parametrize("limit", [1, 2])
def test_the_best_checkpoint_is_kept_beside_the_mean_of_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Liu et al. 2020, B.2: the mean is scored, and stage 2 starts from the best."""
    scores, saved = (
        iter([7.0, 5.0, 6.0, 0.0]),
        dict[int, Any](),
    )  # of steps 4, 8 and 12, and of the final model

    class Copy(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            saved[state.global_step] = load_file(
                tmp_path / f"run/checkpoint-{state.global_step}" / "model.safetensors"
            )

    monkeypatch.setattr(TASK, "validate", lambda _: SimpleNamespace(scores={"exact": next(scores)}))
    kept = {"average_last": limit, "save_total_limit": limit, "keep_best": True, "eval_steps": 4}
    run = train_with(TASK, settings(tmp_path / "run", **kept), Copy())
    last = [8, 12][-limit:]
    assert json.loads((run / "result.json").read_text())["averaged"] == [f"checkpoint-{s}" for s in last]
    assert names(run) == sorted(f"checkpoint-{step}" for step in (4, *last))
    best, final = (
        load_file(run / "best" / "model.safetensors"),
        load_file(run / "model" / "model.safetensors"),
    )
    for name, weight in best.items():
        assert torch.equal(weight, saved[4][name])
        torch.testing.assert_close(final[name], sum(saved[s][name] for s in last) / limit)
    assert damage(run / "best") is None


@pytest.mark.parametrize(("gone", "left"), [(8, [12]), (12, [8])])
def test_a_checkpoint_that_goes_during_the_training_is_named(
    tmp_path: Path, gone: int, left: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Before the mean is taken; the last one right after it was written."""
    run = tmp_path / "run"

    class Lose(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 12:
                shutil.rmtree(run / f"checkpoint-{gone}")

    train_with(TASK, settings(run), Lose())
    assert f"the final model is a mean without checkpoint-{gone}, which is damaged or gone" in caplog.text
    assert json.loads((run / "result.json").read_text())["averaged"] == [f"checkpoint-{s}" for s in left]


def test_a_checkpoint_that_goes_between_two_starts_is_named(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older one that is still there takes no part in the mean."""
    run = TASK.train(settings(tmp_path / "run", save_total_limit=3))
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoint-8")
    TASK.train(settings(run, save_total_limit=3))
    assert "the final model is a mean without checkpoint-8, which is damaged or gone" in caplog.text
    assert json.loads((run / "result.json").read_text())["averaged"] == ["checkpoint-12"]


def test_checkpoints_of_a_stopped_and_resumed_training_are_all_there(
    run: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert equal_runs(TASK.train(settings(run)), whole)
    assert "without" not in caplog.text


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
    "saved steps that are text": (
        saved("step_state_0.pth", lambda s: s.update(saved_steps="4")),
        "its saved_steps is '4'",
    ),
    "flops that are text": (log_of(lambda s: s.update(total_flos="x")), "its total_flos is 'x'"),
}


STATES = ["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "step_state_0.pth"]


@pytest.mark.parametrize("name", STATES)
def test_a_checkpoint_without_a_state_is_refused_whatever_its_manifest_says(
    run: Path, whole: Path, name: str
) -> None:
    republished(run, lambda folder: (folder / name).unlink())
    with pytest.raises(DataError, match=rf"checkpoint-8.*{name}.*; remove .*to resume from") as error:
        TASK.train(settings(run))
    assert len(str(error.value).splitlines()) == 1
    shutil.rmtree(run / "checkpoint-8")  # as it says
    assert equal_runs(TASK.train(settings(run)), whole)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_states_of_the_processes_are_those_that_resume(processes: int, tmp_path: Path) -> None:
    for name in ("trainer_state.json", "optimizer.pt", "scheduler.pt", *random_states(processes)):
        (tmp_path / name).touch()
    check_complete(tmp_path, processes, scaler=False)
    with pytest.raises(DataError, match=r"has no scaler\.pt"):
        check_complete(tmp_path, processes, scaler=True)
    with pytest.raises(DataError, match="has no rng_state"):
        check_complete(tmp_path, processes + 1, scaler=False)
    (tmp_path / "manifest.json").touch()
    with pytest.raises(DataError, match=r"has no step_state_0\.pth"):
        check_complete(tmp_path, processes, scaler=False)


def test_a_random_state_of_another_process_does_not_count(run: Path) -> None:
    """Their number is right, and their names are not."""
    republished(run, lambda folder: (folder / "rng_state.pth").rename(folder / "rng_state_1.pth"))
    with pytest.raises(DataError, match=r"has no rng_state\.pth"):
        TASK.train(settings(run))


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


CHANGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "weights of another run": (
        lambda model, other: shutil.copy(other / "model.safetensors", model),
        "model.safetensors has changed",
    ),
    "the tokenizer of another run": (
        lambda model, other: (model / "tokenizer.json").write_text(
            (model / "tokenizer.json").read_text().replace('"=":', '"~":')
        ),
        "tokenizer.json has changed",
    ),
    "a configuration that computes otherwise": (
        lambda model, other: (model / "config.json").write_text(
            (model / "config.json").read_text().replace('"norm_first": false', '"norm_first": true')
        ),
        "config.json has another size",
    ),
    "no tokenizer": (lambda model, other: (model / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "other weights beside": (
        lambda model, other: (model / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"a": str(other / "model.safetensors")}})
        ),
        "model.safetensors.index.json was added",
    ),
    "an adapter beside": (
        lambda model, other: (model / "adapter_config.json").write_text("{}"),
        "adapter_config.json was added",
    ),
    "an empty manifest": (
        lambda model, other: (model / "manifest.json").write_text("{}"),
        "manifest.json lists no",
    ),
}


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TASK.train(settings(tmp_path_factory.mktemp("another") / "run", seed=2, max_steps=4))


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_evaluated_is_what_was_trained(
    change: str, tmp_path: Path, whole: Path, another: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    act, reason = CHANGES[change]
    act(run / "model", another / "model")
    for command in (["evaluate", str(run)], *(["plot", str(p), "similarity"] for p in (run, run / "model"))):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"run/model is not as it was written: {reason}" in line
    with pytest.raises(DataError, match=f"run/model is not as it was written: {reason}"):
        locate(str(run))


def test_a_model_without_a_seal_is_evaluated_with_a_warning(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    before = TASK.evaluate(run, None).scores
    assert not caplog.records
    (run / "model" / "notes.txt").write_text("a file that no library reads")
    assert TASK.evaluate(run, None).scores == before
    assert not caplog.records
    (run / "model" / "manifest.json").unlink()
    assert TASK.evaluate(run, None).scores == before
    assert "run/model has no manifest.json: nothing shows that it is what the run trained" in caplog.text


def test_a_vocabulary_that_another_run_takes_is_checked(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "vocabulary/tokenizer.json").write_text("{}")
    tree = {"train": "a.txt", "valid": "a.txt", "vocabulary": str(run)}
    asked = make(LanguageModelingSettings, {"run": "x", "data": tree, "model": {"max_length": 9}}, "settings")
    with pytest.raises(DataError, match=r"vocabulary is not as it was written: tokenizer\.json has"):
        task("language_modeling").make_processor(asked, [])


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
