"""A step over several batches solves its flow once and moves the weights as if each batch had."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from floater.flow import FlowEncoder, MLPField
from floater.lab.training import FloaterTrainer
from processes import in_two_processes

from . import toy


class Positioned(nn.Module):
    """Predict each token from itself and its position."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(toy.VOCABULARY, 8)
        self.flow = FlowEncoder(MLPField(8), 8, blocks=[0], names=["q"])
        self.head = nn.Linear(8, toy.VOCABULARY)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        positions = self.flow(torch.arange(input_ids.shape[1])[None]).at(0, "q")
        return {"logits": self.head(torch.tanh(self.embedding(input_ids) + positions))}


def step(run: Path, batches: int) -> FloaterTrainer:
    """A trainer of three steps of some batches each, whose updates are the gradients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "Toy", Positioned)
        return toy.trainer(
            run,
            update_every=1,
            optimizer=toy.sgd,
            learning_rate=1.0,
            gradient_accumulation_steps=batches,
            max_steps=3,
            save_strategy="no",
            count=40,
        )


def trained(run: Path, batches: int = 4) -> tuple[dict[str, Tensor], int]:
    one, solves = step(run, batches), []
    flow = one.model.flow
    solve = flow._solve
    flow._solve = lambda *args: solves.append(1) or solve(*args)
    one.train()
    return {name: weight.detach() for name, weight in one.model.named_parameters()}, len(solves)


def test_a_step_of_four_batches_solves_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, solves = trained(tmp_path / "shared")
    begin = FlowEncoder.begin_step
    monkeypatch.setattr(FlowEncoder, "begin_step", lambda flow, length=None: begin(flow))
    each, many = trained(tmp_path / "each")
    assert (solves, many) == (3, 12)
    before = step(tmp_path / "before", 4).model
    for name, weight in each.items():
        torch.testing.assert_close(shared[name], weight, rtol=1e-4, atol=1e-5)
        assert not torch.equal(weight, before.get_parameter(name))


def save(run: Path) -> None:
    weights, solves = trained(run, batches=2)
    assert solves == 3
    save_file(weights, run / f"weights-{os.environ['RANK']}.safetensors")


@pytest.mark.slow
def test_two_processes_share_solves_as_one_does(tmp_path: Path) -> None:
    """DDP sends the gradient of the whole step, which the last batch brings."""
    in_two_processes(save, tmp_path, folder=tmp_path)
    one, _ = trained(tmp_path / "one")
    for rank in (0, 1):
        for name, weight in load_file(tmp_path / f"weights-{rank}.safetensors").items():
            torch.testing.assert_close(weight, one[name], rtol=1e-5, atol=1e-6)
