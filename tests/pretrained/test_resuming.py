"""A trainer resumes a plugged or extended model as it was, or refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

import floater
from floater.pretrained import PlugError

from . import zoo
from .changed import CHANGED, assert_same, changed, inputs
from .extended import build

pytestmark = pytest.mark.usefixtures("few_steps_for_biases")


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Inputs of a model, row by row."""

    def __init__(self, inputs: dict[str, Tensor]) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {name: tensor[i % len(tensor)] for name, tensor in self.inputs.items()}


class Squares(Trainer):
    """A training that needs no labels."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        return zoo.logits(model(**inputs)).square().mean()


def train(model: Any, inputs: dict[str, Tensor], folder: Path, checkpoint: str | None = None) -> None:
    arguments = TrainingArguments(
        str(folder), max_steps=2, save_steps=1, per_device_train_batch_size=2, learning_rate=1e-2,
        report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False, seed=1,
    )  # fmt: skip
    Squares(model, arguments, train_dataset=Rows(inputs)).train(checkpoint)


@pytest.mark.parametrize(("name", "how"), CHANGED)
def test_a_trainer_resumes_with_the_flow_or_not_at_all(tmp_path: Path, name: str, how: str) -> None:
    model, arguments = changed(name, how), inputs(name, how)
    train(model, arguments, tmp_path)
    checkpoint = str(tmp_path / "checkpoint-1")
    again = changed(name, how)
    train(again, arguments, tmp_path / "again", checkpoint)
    expected = model.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in again.state_dict().items())
    assert_same(name, again, model, how)
    with pytest.raises((PlugError, RuntimeError), match=r"is not plugged|is not extended|size mismatch"):
        train(build(name), arguments, tmp_path / "plain", checkpoint)


@pytest.mark.parametrize("change", ["delta", "log_n", "self_extend", "ntk"])
def test_a_trainer_does_not_resume_a_model_of_another_kind(tmp_path: Path, change: str) -> None:
    """Though weights have the same names and shapes."""
    model, other, arguments = build("llama"), build("llama"), inputs("llama", "extend")
    if change == "delta":
        floater.plug(model, delta=0.2)
        floater.plug(other, delta=0.3)
    else:
        floater.extend(model, 128, change)
    train(model, arguments, tmp_path)
    with pytest.raises(PlugError, match=r"delta is 0.2 there and 0.3 here|is not extended as the model in"):
        train(other, arguments, tmp_path / "other", str(tmp_path / "checkpoint-1"))
