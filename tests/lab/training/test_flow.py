from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

import floater
from floater.lab.training import FlowSchedule, parameter_groups

from .toy import Toy, is_flow, sgd, trainer


class Weights(TrainerCallback):
    """Note the weights before the first step and after each."""

    def __init__(self) -> None:
        self.noted: list[dict[str, Tensor]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.noted:
            self.on_step_end(args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.noted.append({name: p.detach().clone() for name, p in kwargs["model"].named_parameters()})


def test_groups_by_flow_and_decay() -> None:
    model = nn.ModuleDict(
        {"flow": nn.Linear(2, 2), "norm": nn.LayerNorm(3), "out": nn.Linear(2, 3, bias=False)}
    )
    model.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    groups = parameter_groups(model, lr=0.2, weight_decay=0.3, flow_lr_multiplier=0.5, is_flow=is_flow)
    names = {parameter: name for name, parameter in model.named_parameters()}
    seen = {
        (group["flow"], group["lr"], group["weight_decay"]): [names[p] for p in group["params"]]
        for group in groups
    }
    assert seen == {
        (False, 0.2, 0.3): ["out.weight"],
        (False, 0.2, 0.0): ["norm.weight", "norm.bias"],
        (True, 0.1, 0.3): ["flow.weight"],
        (True, 0.1, 0.0): ["flow.bias"],
    }


@pytest.mark.parametrize("name", ["forgetting", "path", "cable", "fire", "dape", "mtan", "floater_cde"])
def test_stacked_biases_do_not_decay(name: str) -> None:
    """Biases of all blocks in one parameter are vectors in the authors' code, which do not decay there."""
    model = floater.build(name, dim=8, heads=2, layers=3, max_length=16)
    groups = parameter_groups(
        model, lr=1.0, weight_decay=0.1, flow_lr_multiplier=1.0, is_flow=lambda name: False
    )
    names = {parameter: name for name, parameter in model.named_parameters()}
    decaying = {names[p] for group in groups if group["weight_decay"] for p in group["params"]}
    biases = {name for name in names.values() if "bias" in name.rpartition(".")[2]}
    assert biases
    assert decaying
    assert not decaying & biases


def test_tied_weights_are_in_one_group_once() -> None:
    model = Toy(0.0)
    model.head.weight = model.embedding.weight
    groups = parameter_groups(model, lr=1.0, weight_decay=0.1, flow_lr_multiplier=1.0, is_flow=is_flow)
    everything = [p for group in groups for p in group["params"]]
    assert len(everything) == len(set(everything)) == len(list(model.parameters()))


@pytest.mark.parametrize(
    ("steps", "every", "updates"), [(6, 1, [1, 2, 3, 4, 5, 6]), (6, 3, [3, 6]), (5, 3, [3, 5])]
)
def test_the_flow_moves_on_every_kth_step_and_the_last(
    tmp_path: Path, steps: int, every: int, updates: list[int]
) -> None:
    weights = Weights()
    trainer(tmp_path, max_steps=steps, update_every=every, callbacks=(weights,), save_strategy="no").train()
    moved: dict[str, list[int]] = {name: [] for name in weights.noted[0]}
    for step, (before, after) in enumerate(pairwise(weights.noted), start=1):
        for name, when in moved.items():
            if not torch.equal(before[name], after[name]):
                when.append(step)
    for name, when in moved.items():
        assert when == (updates if is_flow(name) else list(range(1, steps + 1))), name


def test_the_update_is_with_the_mean_gradient(tmp_path: Path) -> None:
    """If nothing else moves, the flow's update is SGD with the mean of k gradients at one point."""

    def flow_only(model: nn.Module, args: TrainingArguments) -> torch.optim.Optimizer:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_flow(name))
        return sgd(model, args)

    class Gradients(TrainerCallback):
        """Note the gradients and drop them."""

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for name, parameter in kwargs["model"].flow.named_parameters():
                noted[name].append(parameter.grad)
                parameter.grad = None

    noted: dict[str, list[Tensor]] = {"weight": [], "bias": []}
    settings = {
        "optimizer": flow_only,
        "dropout": 0.0,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "max_steps": 4,
    }
    still = trainer(tmp_path, update_every=1, callbacks=(Gradients(),), **settings)
    still.train()
    moving = trainer(tmp_path, update_every=4, **settings)
    moving.train()
    rate = 1e-7 + 3 * (0.05 * 0.5 - 1e-7) / 4  # of the fourth update, in a warm-up of four
    for name, gradients in noted.items():
        start, end = (run.model.flow.get_parameter(name) for run in (still, moving))
        torch.testing.assert_close(end, start - rate * sum(gradients) / 4, rtol=1e-6, atol=1e-7)  # float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_steps": 3}, "save_steps is 3; it must be a multiple of update_every = 2"),
        ({"save_steps": 7}, "save_steps is 7"),
        ({"save_strategy": "epoch"}, "save_strategy is .*EPOCH, which may save between updates of the flow"),
        (
            {"optimizer": lambda model, _: torch.optim.SGD(model.parameters(), 0.1)},
            "no group with a true 'flow'",
        ),
    ],
)
def test_refuses_at_the_start_of_training(tmp_path: Path, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(tmp_path, **arguments).train()


def test_refuses_to_resume_between_updates(tmp_path: Path) -> None:
    trainer(tmp_path, update_every=1, max_steps=3).train()
    with pytest.raises(ValueError, match="cannot resume from step 3"):
        trainer(tmp_path, update_every=2).train(resume_from_checkpoint=True)


def test_refuses_wrong_numbers() -> None:
    with pytest.raises(ValueError, match="update_every is 0"):
        FlowSchedule(0)
    rest = {"lr": 1.0, "weight_decay": 0.0, "flow_lr_multiplier": 1.0, "is_flow": is_flow}
    for name, number in (("lr", -1.0), ("weight_decay", float("nan")), ("flow_lr_multiplier", float("inf"))):
        with pytest.raises(ValueError, match=f"{name} is {number}"):
            parameter_groups(Toy(0.0), **(rest | {name: number}))
    frozen = Toy(0.0).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter of Toy"):
        parameter_groups(frozen, **rest)
