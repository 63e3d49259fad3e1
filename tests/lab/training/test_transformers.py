"""The members of `transformers.Trainer` that our Trainers rely on: an upgrade that changes one fails here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from floater.lab.tasks.language_modeling.trainer import LanguageModelTrainer
from floater.lab.training.run_trainer import RunTrainer
from floater.lab.training.trainer import PRIVATE, FloaterTrainer

SIGNATURES = {
    "_save_checkpoint": ["self", "model", "trial"],
    "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_get_collator_with_removed_columns": ["self", "data_collator", "description"],
}
ATTRIBUTES = {"_loss_shifts_labels"}
KINDS = [FloaterTrainer, RunTrainer, LanguageModelTrainer]


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def overridden(kind: type[Trainer]) -> set[str]:
    """Return the names of the methods that a class defines and `transformers.Trainer` as well."""
    return {name for name, value in vars(kind).items() if callable(value) and name in vars(Trainer)}


def test_the_private_members_are_these() -> None:
    assert PRIVATE.keys() == SIGNATURES.keys() | ATTRIBUTES
    names = {name for kind in KINDS for name in overridden(kind) if not name.startswith("__")}
    private = {name for name in names if name.startswith("_")}
    assert private == SIGNATURES.keys() - {"_get_collator_with_removed_columns"}  # which is called


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_private_method_has_the_parameters_that_it_had(name: str) -> None:
    assert parameters(getattr(Trainer, name)) == SIGNATURES[name]


def test_a_private_attribute_is_one_of_the_trainer(tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    trainer = Trainer(model=model, args=TrainingArguments(str(tmp_path), use_cpu=True))
    assert vars(trainer).keys() >= ATTRIBUTES


@pytest.mark.parametrize("kind", KINDS)
def test_an_override_takes_the_arguments_of_the_method(kind: type[Trainer]) -> None:
    for name in overridden(kind) - {"__init__"}:
        expected = inspect.signature(getattr(Trainer, name)).parameters
        mine = inspect.signature(getattr(kind, name))
        mine.bind(*expected)
        mine.bind(None, **dict.fromkeys(list(expected)[1:]))
