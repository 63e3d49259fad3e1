import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration, BartModel, GPT2Config, GPT2LMHeadModel

from floater.training import FloaterTrainer, TokenBatchSampler, checkpoints, smoothed_cross_entropy
from floater.training.progress import TrainingProgress

from .toy import Toy, collate, examples, trainer


def sgd(model: nn.Module, args: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": list(model.parameters()), "flow": True}], lr=args.learning_rate)


PLAIN = {"optimizer": sgd, "dropout": 0.0, "update_every": 1, "max_grad_norm": 0.0, "save_strategy": "no"}


def test_parts_of_a_batch_are_as_the_whole(tmp_path: Path) -> None:
    """A step over n batches moves the weights as the mean over all their tokens does."""
    run = trainer(tmp_path, **PLAIN, gradient_accumulation_steps=4, max_steps=2, warmup_steps=0)
    rates = [1e-7, 1e-7 + (0.05 - 1e-7) / 4]
    by_hand = Toy(0.0)
    by_hand.load_state_dict(run.model.state_dict())
    batches = list(run.train_batch_sampler)
    data = [{"input_ids": row} for row in examples()]
    for step, rate in enumerate(rates):
        members = [data[index] for batch in batches[4 * step : 4 * step + 4] for index in batch]
        batch = collate(members)
        loss = smoothed_cross_entropy(by_hand(batch["input_ids"])["logits"], batch["labels"], 0.0)
        by_hand.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in by_hand.parameters():
                parameter -= rate * parameter.grad
        losses = [loss.item()] if step == 0 else [*losses, loss.item()]
    run.train()
    logged = [log["loss"] for log in run.state.log_history if "loss" in log]
    assert logged == pytest.approx(losses, rel=1e-5)  # float32
    for expected, seen in zip(by_hand.parameters(), run.model.parameters(), strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-6)


def test_two_processes_are_as_one(tmp_path: Path) -> None:
    """Two processes with one batch each take the steps of one process with two."""
    tests = Path(__file__).parent.parent
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "-m", "training.two_processes", str(tmp_path / "two")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    one = trainer(tmp_path / "one", dropout=0.0)
    one.train()
    step_4, step_12 = checkpoints(tmp_path / "two")
    assert (step_4.name, step_12.name) == ("checkpoint-4", "checkpoint-12")
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {path.name for path in step_12.iterdir()}
    assert not list((tmp_path / "two" / ".unfinished").iterdir())
    state = json.loads((step_12 / "trainer_state.json").read_text())
    losses = [[log["loss"] for log in logs if "loss" in log] for logs in (one.state.log_history, state["log_history"])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # Adam enlarges the rounding of float32
    assert len(losses[0]) == 12


def test_logs_tokens_per_second_and_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter(range(100))
    run = trainer(tmp_path, disable_tqdm=False, logging_steps=2, max_steps=4, eval_strategy="steps", eval_steps=2)
