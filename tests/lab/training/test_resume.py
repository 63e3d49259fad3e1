"""A run that is killed and resumed ends with the weights of one that is not, bit for bit."""

import copy
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from floater.lab.training import FloaterTrainer, checkpoints, last_checkpoint
from processes import in_process

from .toy import collate, examples, trainer


class KilledInStep(TrainerCallback):
    """Kill the process before its optimizer moves in a given step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledInSave(FloaterTrainer):
    """Kill the process in the middle of the save of step 8: the model is written, no state is."""

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.state.global_step == 8:
            os.kill(os.getpid(), signal.SIGKILL)


def train(run: Path, killed_in_step: int | None, killed_in_save: bool) -> None:
    callbacks = () if killed_in_step is None else (KilledInStep(killed_in_step),)
    cls = KilledInSave if killed_in_save else FloaterTrainer
    last = last_checkpoint(run)
    trainer(run, callbacks=callbacks, cls=cls).train(resume_from_checkpoint=last and str(last))


def exit_code(run: Path, *, killed_in_step: int | None = None, killed_in_save: bool = False) -> int | None:
    """Train in a process of its own from the last checkpoint; return its exit code."""
    return in_process(train, run, killed_in_step, killed_in_save, said=run.with_suffix(".txt"))


def steps(run: Path) -> list[int]:
    return [int(path.name.removeprefix("checkpoint-")) for path in checkpoints(run)]


def test_killed_runs_end_with_the_same_weights(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert exit_code(whole) == 0
    assert steps(whole) == [8, 12]  # the last two

    assert exit_code(killed, killed_in_step=7) == -signal.SIGKILL
    assert steps(killed) == [4]
    assert exit_code(killed, killed_in_save=True) == -signal.SIGKILL
    assert steps(killed) == [4]
    assert (killed / ".unfinished" / "checkpoint-8" / "model.safetensors").exists()
    assert exit_code(killed, killed_in_step=11) == -signal.SIGKILL
    assert steps(killed) == [4, 8]
    assert not (killed / ".unfinished" / "checkpoint-8").exists()
    assert exit_code(killed) == 0
    assert steps(killed) == [8, 12]

    for step in (8, 12):
        expected, seen = (load_file(run / f"checkpoint-{step}/model.safetensors") for run in (whole, killed))
        assert expected.keys() == seen.keys()
        assert all(torch.equal(expected[name], seen[name]) for name in expected)
        expected, seen = (
            torch.load(run / f"checkpoint-{step}/optimizer.pt")["state"] for run in (whole, killed)
        )
        assert all(torch.equal(expected[i][name], seen[i][name]) for i in expected for name in expected[i])

    assert exit_code(killed) == 0  # a run at its end trains no further
    assert steps(killed) == [8, 12]


class Seen(FloaterTrainer):
    """Note the tokens of each batch."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        self.__dict__.setdefault("batches", []).append(inputs["input_ids"].tolist())
        return super().training_step(model, inputs, num_items_in_batch)


@pytest.mark.parametrize("workers", [0, 1])
def test_reads_the_batches_of_each_epoch_and_resumes_among_them(tmp_path: Path, workers: int) -> None:
    whole = trainer(tmp_path, cls=Seen, dataloader_num_workers=workers)
    whole.train()
    sampler = copy.deepcopy(whole.train_batch_sampler)
    expected = []
    for epoch in (0, 1):
        sampler.set_epoch(epoch)
        batches = [[{"input_ids": examples()[index]} for index in batch] for batch in sampler]
        expected += [collate(batch)["input_ids"].tolist() for batch in batches]
    assert whole.batches == expected  # twelve steps are two epochs of eleven batches
    assert expected[:11] != expected[11:]

    resumed = trainer(tmp_path, cls=Seen, dataloader_num_workers=workers)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert resumed.batches == expected[11 + 4 :]  # step 8 is the second of its epoch, of two batches each
